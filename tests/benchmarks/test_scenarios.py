"""The scenarios themselves, with as little to do as they can have, on a real server."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from multiprocessing import Pipe

import pytest
import redis

from benchmarks import recovery, renewal, report, server, silence, store_recovery
from benchmarks.bars import BARS, verdicts
from benchmarks.contenders import FREE, Contender, DjangoRedis
from benchmarks.crowd import Turn
from benchmarks.plan import FULL, Plan, Recovery
from benchmarks.probe import Probe
from benchmarks.results import Case
from distlock_web import BackendUnavailable
from distlock_web.testing.servers import RedisServer, ServerMissing
from tests.support.requirements import require_redis

TINY = Plan(
    rounds=2,
    slice=0.01,
    names=40,
    recoveries=(Recovery(2, 2, 1, 1),),
    store_recoveries=(Recovery(2, 2, 1, 1),),
    leases=20,
    renewal_rounds=1,
    renewal=1.5,
    silences=1,
    silence=1.0,
)


class Bench:
    def __init__(self, redis_server: RedisServer) -> None:
        self.server = redis_server
        self.plan = TINY
        self.steps = 0

    def expect(self, steps: int) -> None:
        self.steps += steps

    def step(self, what: str) -> None:
        self.steps -= 1


@pytest.fixture
def bench() -> Iterator[Bench]:
    """With a server of its own: what others do on it would be counted."""
    require_redis()
    with RedisServer() as redis_server:
        made = Bench(redis_server)
        yield made
        assert made.steps == 0, "as many steps as were announced"


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.timing
def test_what_a_free_lock_costs_the_server(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [kind for kind in FREE if kind is not DjangoRedis]  # the caches of this process are the tests'
    monkeypatch.setattr(server, "FREE", free)
    new, known, left = server.run(bench)
    for case in (new, known):
        assert set(case.samples) == {kind.name for kind in free}
        # SET and a script that calls GET and DEL: nothing of what the probe asks is among it.
        assert case.samples["redis-py Lock"]["commands"] == [4.0, 4.0]
        assert case.spread("distlock_web", "commands").median >= 4
        assert case.ratio("redis-py Lock", "CPU").median == 1
        for contender in case.samples:
            assert case.spread(contender, "command time").median > 0
    assert left.samples["redis-py Lock"] == {"keys": [0], "keys for over a minute": [0], "bytes per name": [0]}
    assert left.samples["python-redis-lock"]["keys"] == [TINY.names], "each has a signal, for a second"
    assert left.samples["python-redis-lock"]["keys for over a minute"] == [0]
    assert left.spread("python-redis-lock", "bytes per name").median > 50


@pytest.mark.nightly
def test_what_a_script_calls_was_not_sent(bench: Bench) -> None:
    with Probe(bench.server.url) as probe, redis.Redis.from_url(bench.server.url) as client:

        def work() -> None:
            client.eval("redis.call('SET', KEYS[1], 'x') return redis.call('GET', KEYS[1])", 1, "key")
            client.incr("number")

        before = probe.stats()
        assert probe.sent_during(work) == {"eval", "incrby"}
        assert probe.stats().calls - before.calls == {"set": 1, "get": 1, "eval": 1, "incrby": 1}


@pytest.mark.nightly
def test_a_killed_holder_is_followed_by_all_who_wait(bench: Bench) -> None:
    (case,) = recovery.run(bench)
    assert case.name == "recovery, 2 x 2, 1 s"
    assert not case.notes
    for contender, row in case.samples.items():
        assert row["unserved"] == [0], contender
        # Not before the lease's end; the server counts milliseconds, and from a moment earlier.
        assert row["p50"][0] > -50, contender
        assert row["p50"] == row["longest"]


class Broken(Contender):
    name = "broken"

    def prepare(self, key: str) -> None:
        raise BackendUnavailable("nobody there")


def test_a_waiter_that_cannot_be_warmed_up_says_so_and_goes_on(bench: Bench) -> None:
    """It ended the run, with all that had been measured until then."""
    here, there = Pipe()
    here.send((Broken, "key"))
    here.send(("go",))
    thread = threading.Thread(target=recovery.wait, args=(there, 0, bench.server.url, 1, 1))
    thread.start()
    assert here.recv() == ["not warm: BackendUnavailable: nobody there"]
    assert here.recv() == ([], ["NotImplementedError: "])
    here.close()
    thread.join()


@pytest.mark.nightly
@pytest.mark.parametrize("store", ["Redis", "SQLite"])
def test_a_killed_holder_is_followed_in_another_store(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.setattr(store_recovery, "STORES", {store: store_recovery.STORES[store]})
    (case,) = store_recovery.run(bench)
    (row,) = case.samples.values()
    assert not case.notes
    assert row["unserved"] == [0]
    assert row["p50"] == row["p99"] == row["longest"]
    assert row["p50"][0] > 0, "it counts from before the server has heard of the last lease"


def test_a_store_that_is_not_there_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(stack: object) -> str:
        raise ServerMissing("no mariadbd on PATH")

    monkeypatch.setattr(store_recovery, "STORES", {"MariaDB": serve})
    (case,) = store_recovery.run(bench)
    assert case.notes == ["MariaDB was left out: no mariadbd on PATH."]
    assert not case.samples


@pytest.mark.nightly
def test_renewed_leases_are_taken_over_a_while(bench: Bench) -> None:
    (case,) = renewal.run(bench)
    assert case.spread("distlock_web", "lost").median == 0
    assert case.spread("distlock_web", "requests").median > 0


def test_what_came_after_a_kill() -> None:
    turns = [Turn(0, 1.0, 5.003, 5.004), Turn(1, 1.0, 5.005, 5.006), Turn(0, 1.0, 5.046, 5.047)]
    seen = recovery.summary(recovery.Aftermath(5.0, turns, []), 4)
    assert seen == {
        "p50": pytest.approx(3),
        "longest": pytest.approx(3),
        "gap": pytest.approx(40),
        "unserved": 1,
    }
    nobody = recovery.summary(recovery.Aftermath(5.0, [], []), 4)
    assert math.isnan(nobody["p50"])
    assert nobody["unserved"] == 4


def case(*late: float) -> Case:
    made = Case(FULL.recoveries[0].case, "The holder is killed", recovery.MEASURES, "")
    for one in late:
        made.add("distlock_web", p50=one, longest=one, gap=1.0, unserved=0)
        made.add("redis-py Lock", p50=math.nan, longest=math.nan, gap=math.nan, unserved=16)
    return made


def test_the_worst_of_a_measure_is_what_its_bar_asks_for() -> None:
    found = {verdict.bar.measure: verdict for verdict in verdicts([case(4, 5, 101)])}
    assert found["p50"].found.median == 5
    assert found["longest"].found.median == 101
    assert [name for name, verdict in found.items() if not verdict.passed] == ["longest"]
    assert case(4, 5).spread("redis-py Lock", "longest").n == 0, "no sample is no worst one"


def test_a_p99_is_the_sample_that_one_in_a_hundred_exceeds() -> None:
    plan = FULL.store_recoveries[0]
    made = Case(store_recovery.case_name(plan), "", store_recovery.MEASURES, "")
    for late in [*range(99), 500]:
        made.add(store_recovery.row("MariaDB"), p50=late, p99=late, longest=late, gap=late, unserved=0)
    found = {verdict.bar.measure: verdict for verdict in verdicts([made])}
    assert (found["p99"].found.median, found["p99"].passed) == (98, True)
    assert made.spread(store_recovery.row("MariaDB"), "longest").median == 500


def test_a_case_without_a_reference_has_no_ratios() -> None:
    made = case(4, 5)
    ((heads, rows),) = report.tables(made)
    assert heads == ["lock", "p50 ms", "longest ms", "gap ms", "unserved"]
    assert [row[0] for row in rows] == ["distlock_web", "redis-py Lock"]
    assert "ratio" not in report.caption(made)
    assert "redis-py Lock" in report.markdown([made], {"packages": {}, "python": "", "redis_server": "", "cpus": 2})


def test_only_the_bars_of_the_cases_that_were_run_are_shown() -> None:
    assert {verdict.bar.case for verdict in verdicts([case(4)])} == {FULL.recoveries[0].case}
    assert not list(verdicts([]))


def test_every_bar_is_for_one_measure_once() -> None:
    meant = [(bar.case, bar.measure, bar.contender) for bar in BARS]
    assert len(meant) == len(set(meant))


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.timing
def test_a_store_that_hangs_leaves_the_other_views_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "VIEWS", {"distlock_web": "decorated"})
    (case,) = silence.run(bench)
    seen = {name: samples[0] for name, samples in case.samples["distlock_web"].items()}
    assert seen["while it hangs"] > 0.5 * seen["before"]
    assert seen["longest refusal"] < 3, "two time-outs, of a second each"
