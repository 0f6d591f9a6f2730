"""``leader``: of all candidates one starts; it has stopped before another does."""

from __future__ import annotations

import contextvars
import importlib
import importlib.abc
import itertools
import multiprocessing
import os
import pty
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distlock_web import Candidate, ConfigurationError, LockBusy, configure, current_lease, held_locks, leader, lock
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from distlock_web.core.worker import start_thread
from distlock_web.locks import leader as module
from distlock_web.locks.hold import Hold
from distlock_web.locks.lease import Lease, scope_of
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.forking import beside_threads, child_status, end_of, in_child
from tests.support.revoking import revoke, revoke_the_lock
from tests.support.waiting import LONG, PATIENCE, eventually

pytestmark = pytest.mark.usefixtures("memory_store")


class Company:
    """Some candidates for one lock, and what they did, in its order."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.candidates: dict[str, Candidate] = {}
        self.way = FaultInjector(registry().store("default"))  #: to the store

    def join(
        self,
        name: str,
        start: Callable[[], object] = lambda: None,
        stop: Callable[[], object] = lambda: None,
        expire: float = LONG,
    ) -> Candidate:
        def started() -> object:
            self.did.append(f"start {name}")
            return start()

        def stopped() -> None:
            self.did.append(f"stop {name}")
            stop()
            self.did.append(f"stopped {name}")

        self.candidates[name] = leader("scheduler", start=started, stop=stopped, expire=expire)
        return self.candidates[name]

    def saw(self, *events: str) -> None:
        """Wait until these have happened, and nothing else has."""
        eventually(lambda: len(self.did) >= len(events), f"{events}, not {self.did}")
        assert self.did == list(events)

    def leaders(self) -> list[str]:
        return [name for name, candidate in self.candidates.items() if candidate.is_leader()]

    def queue(self, name: str, **options: Any) -> Candidate:
        """Join behind a leader, and wait in the queue."""
        before = waiting()
        candidate = self.join(name, **options)
        eventually(lambda: waiting() > before, f"{name} waits")
        return candidate


def waiting() -> int:
    return sum(row.lock.waiters for row in held_locks("scheduler"))


def hold_of(candidate: Candidate) -> Hold:
    assert candidate._term is not None
    return scope_of(candidate._term._lease).holds[0]


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch) -> Iterator[Company]:
    monkeypatch.setattr(module, "GRACE", 0.0)
    monkeypatch.setattr(module, "RETRY", 0.01)
    company = Company()
    yield company
    monkeypatch.undo()
    company.way.mend()
    for candidate in list(module._candidates):
        candidate._resign()
    eventually(ended, "they end")


def ended() -> bool:
    """Those who wait get the lock one after the other, and give it back. One that was lost is freed for them."""
    for row in held_locks("scheduler"):
        if row.lock.fence is not None:
            revoke(row.lock.name, row.lock.fence)
    return not leader_threads()


def leader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("distlock-leader")]


def test_one_starts_and_the_next_when_it_has_stopped(company: Company) -> None:
    """Also of two in one process."""
    company.join("a")
    company.saw("start a")
    company.queue("b")
    company.queue("c")
    assert company.leaders() == ["a"]
    assert company.did == ["start a"]
    company.candidates["a"].close()
    assert company.did[:3] == ["start a", "stop a", "stopped a"], "close returns when stop has"
    company.saw("start a", "stop a", "stopped a", "start b")
    assert company.leaders() == ["b"]


def test_who_closes_while_it_waits_never_starts(company: Company) -> None:
    company.join("a")
    company.saw("start a")
    company.queue("b").close()
    company.queue("c")
    company.candidates["a"].close()
    company.saw("start a", "stop a", "stopped a", "start c")


def expire_early(company: Company) -> None:
    hold_of(company.candidates["a"]).deadline = now() - 1


def lose_by_force(company: Company) -> None:
    revoke_the_lock()
    scope = company.candidates["a"]._term
    assert scope is not None
    with pytest.raises(Exception, match="no longer held"):
        scope._lease.extend()  # sooner than the next renewal would notice it


def end_in_time(company: Company) -> None:
    """No renewal comes through: a quarter of the lease is left, and the store holds the lock still."""
    company.way.cut()
    hold_of(company.candidates["a"]).deadline = now() + LONG / 4


@pytest.mark.parametrize("end", [expire_early, lose_by_force, end_in_time])
def test_it_stops_when_the_lease_is_lost_and_sooner(company: Company, end: Callable[[Company], None]) -> None:
    told: list[tuple[bool, float]] = []

    def stop() -> None:
        candidate = company.candidates["a"]
        told.append((candidate.is_leader(), hold_of(candidate).remaining))

    company.join("a", stop=stop)
    company.saw("start a")
    eventually(lambda: company.leaders() == ["a"], "it leads")
    end(company)
    eventually(lambda: "stopped a" in company.did, "it stops")
    [(leads, remaining)] = told
    assert not leads
    assert (remaining > 0) == (end is end_in_time)


def test_half_of_a_lease_is_enough(company: Company) -> None:
    company.join("a")
    company.saw("start a")
    hold_of(company.candidates["a"]).deadline = now() + LONG / 2
    term = company.candidates["a"]._term
    assert term is not None
    assert term.has_time()


def test_it_does_not_lead_from_the_deadline_on_whatever_its_threads_do(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that slept asks before any thread of ours has had its turn."""
    monkeypatch.setattr(module, "LOOK_EVERY", LONG)
    candidate = company.join("a")
    company.saw("start a")
    assert candidate.is_leader()
    hold_of(candidate).deadline = now()
    assert not candidate.is_leader()
    candidate._look()
    company.saw("start a", "stop a", "stopped a", "start a")


# A start or a stop that goes wrong ----------------------------------------------------------------------------------


def fail() -> None:
    raise ValueError("no such table")


async def coroutine() -> None: ...


@pytest.mark.parametrize("start", [fail, sys.exit, lambda: coroutine()])
def test_a_start_that_fails_lets_others_try(
    company: Company, start: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    begins = threading.Event()

    def start_later() -> object:
        assert begins.wait(PATIENCE)
        return start()

    company.join("a", start=start_later)
    company.saw("start a")
    company.queue("b")
    begins.set()
    company.saw("start a", "start b")
    assert company.leaders() == ["b"]
    assert "leader('scheduler'): start failed" in caplog.text


def test_and_it_tries_again_after_the_time_of_a_lease(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it has failed before anybody looked: the wake-up that comes of it ends no pause."""

    def start(name: str, work: Callable[..., object], *args: object) -> None:
        thread = start_thread(name, work, *args)
        if name == "distlock-leader-start":
            thread.join(PATIENCE)

    monkeypatch.setattr(module, "start_thread", start)
    tried: list[float] = []

    def fail_twice() -> None:
        tried.append(now())
        if len(tried) < 3:
            fail()

    company.join("a", start=fail_twice, expire=0.2)
    eventually(lambda: len(tried) >= 3, "it tries until it succeeds")
    assert all(later - earlier >= 0.2 for earlier, later in itertools.pairwise(tried)), tried


def test_a_start_that_is_slow_keeps_nobody_from_giving_up(company: Company) -> None:
    """It is stopped beside its start, and once more when that has returned. Only then another starts."""
    goes_on, stops = threading.Event(), threading.Semaphore(0)
    company.join("a", start=lambda: goes_on.wait(PATIENCE), stop=stops.release)
    company.saw("start a")
    company.queue("b")
    closing = threading.Thread(target=company.candidates["a"].close)
    closing.start()
    assert stops.acquire(timeout=PATIENCE)
    assert held_locks("scheduler")
    assert "start b" not in company.did
    goes_on.set()
    closing.join(PATIENCE)
    company.saw("start a", "stop a", "stopped a", "stop a", "stopped a", "start b")


def test_a_start_that_runs_until_stop_is_one_that_is_slow(company: Company) -> None:
    ends = threading.Event()
    company.join("a", start=lambda: ends.wait(PATIENCE), stop=ends.set)
    company.saw("start a")
    company.candidates["a"].close()
    assert company.did[:3] == ["start a", "stop a", "stopped a"]


def test_a_start_that_fails_after_the_stop_is_not_stopped_again(company: Company) -> None:
    goes_on = threading.Event()

    def start() -> None:
        goes_on.wait(PATIENCE)
        fail()

    company.join("a", start=start, stop=goes_on.set)
    company.saw("start a")
    company.candidates["a"].close()
    assert company.did == ["start a", "stop a", "stopped a"]


def test_a_stop_that_hangs_keeps_the_lock_and_says_so(company: Company, caplog: pytest.LogCaptureFixture) -> None:
    hangs, returns = threading.Event(), threading.Event()

    def stop() -> None:
        hangs.set()
        assert returns.wait(PATIENCE)

    candidate = company.join("a", stop=stop)
    company.saw("start a")
    company.queue("b")
    assert candidate._term is not None
    candidate._term.expire = 0.2  # what it waits for ``stop``, of a lease that a busy machine does not end
    candidate._resign()
    assert hangs.wait(PATIENCE)
    assert not candidate.is_leader()
    eventually(lambda: "stop has not returned for 0.2 s" in caplog.text, "it is logged")
    assert held_locks("scheduler")
    returns.set()
    company.saw("start a", "stop a", "stopped a", "start b")


def test_a_stop_that_fails_is_logged_and_counts(company: Company, caplog: pytest.LogCaptureFixture) -> None:
    company.join("a", stop=fail)
    company.saw("start a")
    company.queue("b")
    company.candidates["a"].close()
    company.saw("start a", "stop a", "start b")
    assert "leader('scheduler'): stop failed" in caplog.text


@pytest.mark.parametrize("caller", ["start", "stop"])
def test_start_and_stop_may_close_it(company: Company, caller: str) -> None:
    ready = threading.Event()  # the test has the candidate

    def close() -> None:
        assert ready.wait(PATIENCE)
        company.candidates["a"].close()

    company.join("a", **{caller: close})  # type: ignore[arg-type]
    ready.set()
    eventually(lambda: "start a" in company.did, "it starts")
    company.candidates["a"].close()
    eventually(lambda: not held_locks("scheduler"), "it ends")
    assert company.did[-1] == "stopped a"


def test_a_stop_that_has_no_thread_is_like_one_that_has(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on none starts at the program's end. It is inside of no lock, and may close the candidate."""

    def start(name: str, work: Callable[..., object], *args: object) -> None:
        if name == "distlock-leader-stop":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start_thread(name, work, *args)

    monkeypatch.setattr(module, "start_thread", start)
    ready, seen = threading.Event(), []

    def stop() -> None:
        assert ready.wait(PATIENCE)
        company.candidates["a"].close()
        seen.append(current_lease())

    company.join("a", stop=stop)
    company.saw("start a")
    ready.set()
    company.candidates["a"]._resign()
    company.saw("start a", "stop a", "stopped a")
    eventually(lambda: not held_locks("scheduler"), "the lock is given back")
    assert seen == [None]


def test_close_returns_whatever_the_release_raises(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    company.join("a")
    company.saw("start a")
    term = company.candidates["a"]._term
    assert term is not None
    monkeypatch.setattr(Lease, "release", lambda _: fail())
    company.candidates["a"]._resign()
    assert term.over.wait(PATIENCE)
    assert not company.leaders()


def test_a_store_that_does_not_answer_is_asked_again(company: Company, caplog: pytest.LogCaptureFixture) -> None:
    company.way.cut()
    company.join("a")
    eventually(lambda: company.way.calls.count("acquire") > 6, "it tries again")
    said = [record for record in caplog.records if "could not ask for its lock" in record.getMessage()]
    assert [vars(record)["lock_name"] for record in said] == ["disLock:scheduler"], "that is said once"
    company.way.mend()
    company.saw("start a")


# Where it is called -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"start": coroutine}, "start is .*coroutine function"),
        ({"stop": coroutine}, "stop is .*coroutine function"),
        ({"stop": None}, "it has to be a function"),
        ({"expire": 0}, "expire"),
        ({"key": 7}, "the key is text"),
        ({"key": ""}, "a string that is not empty"),
    ],
)
def test_what_cannot_be_is_refused_at_once(words: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"key": "scheduler", "start": print, "stop": print} | words
    with pytest.raises(ConfigurationError, match=message):
        leader(given.pop("key"), **given)
    assert not leader_threads()


async def test_close_is_refused_in_an_event_loop(company: Company) -> None:
    candidate = company.join("a")
    with pytest.raises(ConfigurationError, match=r"asyncio\.to_thread\(candidate\.close\)"):
        candidate.close()


def test_start_has_the_context_of_the_call_but_none_of_its_locks(company: Company) -> None:
    app = contextvars.ContextVar("app", default="none")
    app.set("shop")
    seen: list[object] = []

    def start() -> None:
        seen.extend((app.get(), current_lease()))
        with pytest.raises(LockBusy):
            lock("deployment", wait=0).acquire()
        seen.append("excluded")

    with lock("deployment", expire=LONG):
        company.join("a", start=start)
        eventually(lambda: len(seen) == 3, "it starts")
    assert seen == ["shop", None, "excluded"]


def test_the_page_of_held_locks_says_what_it_is(company: Company) -> None:
    company.join("a")
    company.saw("start a")
    [row] = held_locks("scheduler")
    assert "leader scheduler" in row.describe()


class Compiled(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports ``compiled_app`` as one that Cython has made: no frame is that module's."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self.begin = begin

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "compiled_app" else None

    def exec_module(self, module: object) -> None:
        self.begin()


#: What each module does, by its file: the first begins, and the last to end is the app, which is named first.
APPS = {
    "a module": ("shop_app", {"shop_app.py": "import shop_jobs; shop_jobs.begin(); shop_jobs.go_on()"}),
    "a module that another one imports": (
        "outer_app",
        {
            "outer_app.py": "import inner_app, shop_jobs; shop_jobs.go_on()",
            "inner_app.py": "import shop_jobs; shop_jobs.begin()",
        },
    ),
    "a module in a package": (
        "shop_package",
        {
            "shop_package/__init__.py": "from . import jobs; import shop_jobs; shop_jobs.go_on()",
            "shop_package/jobs.py": "import shop_jobs; shop_jobs.begin()",
        },
    ),
    "a package, by a module in it": (
        "late_package.jobs",
        {
            "late_package/__init__.py": "import shop_jobs; shop_jobs.begin(); shop_jobs.go_on()",
            "late_package/jobs.py": "",
        },
    ),
    "a compiled module": ("compiled_app", {}),
    "a module that imports a compiled one": (
        "import_app",
        {"import_app.py": "import compiled_app"},
    ),
}


@pytest.mark.parametrize("app", APPS)
def test_nobody_begins_while_the_app_is_imported(
    company: Company, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: str
) -> None:
    """A server that loads it before it forks would lead itself."""
    name, files = APPS[app]
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    called, goes_on = threading.Event(), threading.Event()

    def begin() -> None:
        company.join("a")

    def go_on() -> None:
        called.set()
        assert goes_on.wait(PATIENCE)
        company.did.append("imported")

    def both() -> None:
        begin()
        go_on()

    monkeypatch.setattr(sys, "meta_path", [Compiled(both), *sys.meta_path])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "shop_jobs", SimpleNamespace(begin=begin, go_on=go_on))
    known = set(sys.modules)
    importing = threading.Thread(target=importlib.import_module, args=(name,))
    importing.start()
    try:
        assert called.wait(PATIENCE)
        assert module._imports_around() == [], "it is another thread's"
        goes_on.wait(0.2)  # its thread looks several times
        assert company.did == []
    finally:
        goes_on.set()
        importing.join(PATIENCE)
        for imported in set(sys.modules) - known:
            if imported.partition(".")[0].endswith(("_app", "_package")):
                del sys.modules[imported]
    company.saw("imported", "start a")


# Forks and ends -----------------------------------------------------------------------------------------------------


@beside_threads
def test_a_child_of_a_leader_does_not_lead_nor_take_part(company: Company) -> None:
    candidate = company.join("a")
    company.saw("start a")
    eventually(candidate.is_leader, "it leads")

    def child() -> None:
        assert not candidate.is_leader()
        assert not module._candidates
        assert not leader_threads()
        candidate.close()

    in_child(child)
    assert candidate.is_leader()
    assert company.did == ["start a"], "and nobody has stopped it"


@beside_threads
def test_a_process_that_forks_before_the_campaign_leaves_it_to_its_children(
    company: Company, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "GRACE", LONG)
    candidate = company.join("a")
    monkeypatch.setattr(module, "GRACE", 0.0)

    def child() -> None:
        eventually(lambda: company.did == ["start a"] and candidate.is_leader(), "the child leads")
        in_child(lambda: None if not candidate.is_leader() else fail())

    in_child(child)
    eventually(lambda: not leader_threads(), "the parent takes no part")
    assert "leaves that to its children for good" in caplog.text
    in_child(child)  # nor one that is forked later


def by_popen() -> None:
    subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: None, check=True)


def by_process() -> None:
    worker = multiprocessing.get_context("fork").Process(target=takes_no_part)
    worker.start()
    worker.join(PATIENCE)
    assert worker.exitcode == 0


def by_billiard() -> None:
    worker = pytest.importorskip("billiard").get_context("fork").Process(target=takes_no_part)
    worker.start()
    worker.join(PATIENCE)
    assert worker.exitcode == 0


def by_terminal() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os._exit(child_status(takes_no_part))
    assert end_of(pid) == 0
    os.close(terminal)


class OneProcessEach(socketserver.ForkingTCPServer):
    def finish_request(self, request: object, client_address: object) -> None:
        takes_no_part()  # else the child ends with 1


def by_server() -> None:
    with (
        OneProcessEach(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server,
        socket.create_connection(server.server_address[:2]) as client,  # type: ignore[arg-type]
    ):
        server.handle_request()
        assert server.active_children
        pid = server.active_children.pop()
        client.recv(1)
        assert end_of(pid) == 0


def takes_no_part() -> None:
    assert not module._candidates
    assert not leader_threads()


@beside_threads
@pytest.mark.parametrize("fork", [by_popen, by_process, by_billiard, by_terminal, by_server])
def test_a_fork_for_something_else_leaves_nothing(
    company: Company, monkeypatch: pytest.MonkeyPatch, fork: Callable[[], None]
) -> None:
    """A command, or a pool, that the app begins with. If each worker does so, else nobody would ever lead."""
    monkeypatch.setattr(module, "GRACE", LONG)
    candidate = company.join("a")
    eventually(leader_threads, "it is about to begin")
    fork()
    eventually(lambda: candidate._look() or candidate.is_leader(), "the parent leads")
    company.saw("start a")


ENDINGS = {
    "the end": "",
    "sys.exit": "sys.exit(3)",
    "an exception": "raise ValueError",
    "a thread that only stop ends": "threading.Thread(target=ends.wait).start()",
}
PROGRAM = """
import sys, threading
from distlock_web import configure, current_lease, leader
from distlock_web.locks import leader as module
module.GRACE = 0
configure({"default": {"BACKEND": "memory"}})
started, ends = threading.Event(), threading.Event()
def start():
    print("start", flush=True)
    started.set()
def stop():
    candidate.close()
    print("stop", candidate.is_leader(), current_lease(), flush=True)
    ends.set()
candidate = leader("scheduler", start=start, stop=stop, expire=300)
started.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_the_program_stops_it(ending: str) -> None:
    program = [sys.executable, "-c", PROGRAM + ENDINGS[ending]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.splitlines() == ["start", "stop False None"], done.stderr


def test_a_closed_registry_ends_nobody(company: Company) -> None:
    """A process that is configured anew leads on in the store that it has asked, and asks the new one next."""
    company.join("a")
    company.saw("start a")
    configure({"default": {"BACKEND": "memory"}})
    company.join("b")
    company.saw("start a", "start b")
    assert company.leaders() == ["a", "b"]
    company.candidates["a"].close()
    company.saw("start a", "start b", "stop a", "stopped a")
