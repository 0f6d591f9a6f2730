"""A lock that is handed over: it is with one of the two, or free."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import dataclasses
import json
from typing import Any

import pytest

from distlock_web import BackendUnavailable, ConfigurationError, LeaseLost, NotHeld, aattach, attach, lock
from distlock_web.backends.memory import MemoryPort
from distlock_web.core.backend import Claim, Port
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks import engine, handover
from distlock_web.locks.events import Event, subscribe, unsubscribe
from distlock_web.locks.handover import Ticket
from distlock_web.locks.lease import scope_of
from distlock_web.locks.scope import Scope, Spec
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import Beside, unrelated
from tests.support.tickets import encoded, forged
from tests.support.waiting import SOON, eventually


def held() -> dict[str, str]:
    return {line.name: line.state for line in drive(registry().store("default").port(THREADS).inspect())}


def test_a_hand_over_of_several_locks_of_which_one_is_lost_gives_the_others_back(store: str) -> None:
    """They stayed in transit for all its time, with a ticket that nobody had ever seen."""
    with pytest.raises(LeaseLost), lock(["a", "b", "c"]) as lease:
        assert drive(registry().store("default").port(THREADS).revoke("disLock:b", lease.fences["disLock:b"]))
        lease.detach(transit=600)
    assert held() == {}


@pytest.mark.parametrize("key", ["a", "b", "c"])
@pytest.mark.parametrize(("verb", "fails_at"), [("detach", "c"), ("attach", "b")])
def test_a_bug_where_one_name_is_freed_keeps_no_other_in_transit(
    memory_store: None, monkeypatch: pytest.MonkeyPatch, key: str, verb: str, fails_at: str
) -> None:
    """Those behind it stayed in transit for all its time, with a ticket that nobody could use."""
    sent = {each: getattr(MemoryPort, each) for each in ("cancel", verb)}

    async def broken(port: MemoryPort, claim: Claim) -> None:
        if claim.name == f"disLock:{key}":
            raise LookupError("a bug")
        await sent["cancel"](port, claim)

    async def unanswered(port: MemoryPort, claim: Claim, *args: Any) -> Any:
        if claim.name == f"disLock:{fails_at}":
            raise BackendUnavailable("No answer.")
        return await sent[verb](port, claim, *args)

    monkeypatch.setattr(MemoryPort, "cancel", broken)
    monkeypatch.setattr(MemoryPort, verb, unanswered)
    lease = lock(["a", "b", "c"]).acquire()
    with pytest.raises(BackendUnavailable) as caught:
        attach(lease.detach(transit=600))
    assert held().keys() <= {f"disLock:{key}"}
    assert {hold.state for hold in scope_of(lease).holds} == {"released"}
    if key != "a" or verb == "detach":
        assert "a bug" in " ".join(caught.value.__notes__)


@pytest.mark.parametrize("keys", [["a", "b"], ["a", "b", "c"]], ids=["two", "three"])
def test_of_a_ticket_that_cannot_be_used_as_a_whole_nothing_stays_in_transit(
    store: str, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each later try failed at the first name, and the others were taken for all the time of the transit."""
    injector, take_on = FaultInjector(registry().store("default")), handover.take_on

    async def take_on_the_first(scope: Scope, port: Port, name: str, ticket: Ticket) -> None:
        if name != "disLock:a":
            injector.lose("attach", "request", "request")
        await take_on(scope, port, name, ticket)

    ticket = lock(keys).acquire().detach(transit=600)
    with monkeypatch.context() as patched, pytest.raises(BackendUnavailable):
        patched.setattr(handover, "take_on", take_on_the_first)
        attach(ticket)
    assert held() == {}


def test_of_a_ticket_that_is_used_twice_at_once_the_first_use_goes_on(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one found the first lock gone, and freed the second under the hands of the first use."""
    ticket, take_on = lock(["a", "b"]).acquire().detach(transit=600), handover.take_on

    async def take_on_and_use_again(scope: Scope, port: Port, name: str, given: Ticket) -> None:
        await take_on(scope, port, name, given)
        monkeypatch.setattr(handover, "take_on", take_on)
        with pytest.raises(NotHeld):
            contextvars.Context().run(attach, ticket)

    monkeypatch.setattr(handover, "take_on", take_on_and_use_again)
    lease = attach(ticket)
    assert set(held()) == {"disLock:a", "disLock:b"}
    lease.release()


async def test_an_attach_that_fails_and_is_cancelled_while_it_gives_back_leaves_none_in_transit(
    memory_store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other names stayed in transit for all its time."""
    sent = {each: getattr(MemoryPort, each) for each in ("attach", "release")}

    async def unanswered(port: MemoryPort, claim: Claim, proof: str) -> Any:
        if claim.name == "disLock:b":
            raise BackendUnavailable("No answer.")
        return await sent["attach"](port, claim, proof)

    async def cancelled(port: MemoryPort, *args: Any) -> Any:
        attaching.cancel()
        await asyncio.sleep(0)
        return await sent["release"](port, *args)

    lease = await lock(["a", "b", "c"]).aacquire()
    ticket = await lease.adetach(transit=600)
    monkeypatch.setattr(MemoryPort, "attach", unanswered)
    monkeypatch.setattr(MemoryPort, "release", cancelled)
    attaching = asyncio.ensure_future(aattach(ticket))
    await asyncio.wait([attaching])
    assert attaching.cancelled()
    assert await asyncio.to_thread(held) == {}


@pytest.mark.parametrize("keys", ["a", ["a", "b"]], ids=["one", "two"])
async def test_a_hand_over_that_is_cancelled_gives_the_locks_back(store: str, keys: str | list[str]) -> None:
    """The caller never got the ticket, and the lock stayed in transit for all its time."""

    async def hand_over() -> None:
        async with lock(keys) as lease:
            this = asyncio.current_task()
            assert this is not None
            asyncio.get_running_loop().call_soon(this.cancel)
            await lease.adetach(transit=600)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(hand_over())
    assert await asyncio.to_thread(held) == {}


@pytest.mark.usefixtures("memory_store")
def test_a_hand_over_that_fails_is_taken_back_for_as_long_as_the_ticket_would_have_lasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What cannot be cancelled now is kept to be cancelled later: no shorter than the store may have it."""
    store = registry().store("default")
    injector, port, cancelled, told = FaultInjector(store), store.port(THREADS), list[Claim](), list[Event]()

    async def cancel(claim: Claim) -> None:
        cancelled.append(claim)

    lease = lock("a", expire=60).acquire()
    (hold,) = scope_of(lease).holds
    injector.lose("detach", "answer", "answer")
    monkeypatch.setattr(port, "cancel", cancel, raising=False)
    monkeypatch.setattr(store, "port", lambda runtime: port)
    listener = subscribe(told.append, inline=True)
    try:
        with pytest.raises(BackendUnavailable):
            lease.detach(transit=600)
    finally:
        unsubscribe(listener)
    assert [claim.expire for claim in cancelled] == [600, 600]
    assert hold.claim.token in {claim.token for claim in cancelled}
    assert [(event.kind, event.reason) for event in told if event.kind == "released"] == [("released", "")]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("options", [{"limit": 2}, {"shared": True}])
def test_the_place_of_one_holder_of_several_is_not_handed_over(options: dict[str, Any]) -> None:
    with lock("a", **options) as lease, pytest.raises(ConfigurationError, match="take its own place"):
        lease.detach()


@pytest.mark.usefixtures("memory_store")
def test_a_store_that_cannot_hand_over_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with lock("a") as lease:
        backend = registry().store("default").backend
        monkeypatch.setattr(backend, "capabilities", dataclasses.replace(backend.capabilities, transfer=False))
        with pytest.raises(ConfigurationError, match="'default' cannot hand a lock over"):
            lease.detach()


def test_a_lock_in_transit_for_less_than_its_lease_does_not_keep_its_waiter_for_the_lease(
    store: str, beside: Beside
) -> None:
    """Nobody told the waiter, which slept until the lease would have ended."""
    holder = unrelated("a")
    port = registry().store("default").port(THREADS)
    waiting = beside(lock("a", wait=2 * SOON).acquire)
    eventually(lambda: drive(port.inspect())[0].waiters, "it waits")
    holder.detach(transit=0.3)  # and nobody takes it on
    waiting.result(SOON).release()


@pytest.mark.usefixtures("memory_store")
def test_a_ticket_whose_fence_is_not_the_stores_is_refused() -> None:
    """A store that forgot the acquisition and gives another: the receiver would write under a fence of nobody's."""
    lease = lock("a").acquire()
    ticket = Ticket.of(scope_of(lease))
    other = dataclasses.replace(ticket, fences={"disLock:a": 7})
    store, hold = registry().store("default"), scope_of(lease).holds[0]
    assert drive(store.port(THREADS).detach(hold.claim, ticket.proof, 60)) is None
    with pytest.raises(NotHeld) as caught:
        drive(engine.acquire(Scope(scope_of(lease).spec, THREADS), other))
    assert caught.value.name == "disLock:a"
    assert held() == {}, "what was taken on by mistake is given back"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no ticket",
        "W10=",
        "\N{SNOWMAN}",
        forged() + "\udcff",
        forged(held=[["n", 1], ["\udcff", 1]]),
        forged(prefix="\udcff"),
        forged(store="\udcff"),
        forged(held=[]),
        forged(held=[["n", float("inf")]]),
        forged(expire=float("nan")),
        forged(expire=float("inf")),
        forged(expire=10**400),
        forged(expire=-1),
        forged(renew_for=-1),
        forged(kept=float("inf")),
        forged(keep=float("nan")),
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
    ],
    ids=[
        "empty",
        "words",
        "list",
        "snowman",
        "half a character",
        "half a character in a name",
        "half a character in the prefix",
        "half a character in the store",
        "no lock",
        "endless fence",
        "nan",
        "for ever",
        "huge",
        "negative",
        "renewed for less than nothing",
        "kept for ever",
        "kept for no number",
        "deep",
    ],
)
@pytest.mark.usefixtures("memory_store")
def test_a_text_that_is_no_ticket_is_refused(text: str) -> None:
    with pytest.raises(NotHeld, match=r"^This is not a ticket from lease\.detach\(\), or it was altered\.$"):
        attach(text)
    with pytest.raises(NotHeld, match="used before"):  # what is forged well is one, and proves nothing
        attach(forged())


def test_a_ticket_of_a_newer_format_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"^A ticket from lease\.detach\(\) has been stored in format 3 "):
        Ticket.loads(encoded("default", [["n", 1]], 10, False, "p:", {"format": 3}))


def test_a_ticket_from_before_there_were_times_has_none() -> None:
    text = encoded("default", [["n", 1]], 10, True, "p:", "a secret")
    assert Ticket.loads(text) == Ticket(text, "default", {"n": 1}, 10.0, True, "p:", None, 0.0, 0.0)


@pytest.mark.parametrize(
    ("renew_for", "hold_at_least", "keep_until", "left"),
    [
        (None, 0.0, 0.0, (None, 0.0, 0.0)),
        (25.0, 30.0, 1013.0, (15.0, 20.0, 3.0)),
        (10.5, 10.5, 1010.5, (0.5, 0.5, 0.5)),
        (5.0, 5.0, 1005.0, (0.0, 0.0, 0.0)),
    ],
)
@pytest.mark.usefixtures("memory_store")
def test_a_ticket_says_what_is_left_of_each_time(
    renew_for: float | None,
    hold_at_least: float,
    keep_until: float,
    left: tuple[float | None, float, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten seconds after it was taken. And what it says is what is read."""
    lease = lock("a", expire=20, renew=True).acquire()
    scope = scope_of(lease)
    scope.spec, scope.keep_for = scope.spec._replace(renew_for=renew_for), hold_at_least
    (hold,) = scope.acquired
    hold.since, hold.keep_until = 1000.0, keep_until
    monkeypatch.setattr(handover, "now", lambda: 1010.0)
    ticket = Ticket.of(scope)
    assert ticket == Ticket(ticket.text, "default", {"disLock:a": lease.fence}, 20.0, True, "disLock:", *left)
    assert Ticket.loads(ticket.text) == ticket
    last = json.loads(base64.urlsafe_b64decode(ticket.text))[-1]
    assert (sorted(last), len(last["secret"])) == (["secret", "times"], 32)
    lease.release()  # else the watchdog says, in another test, that nobody has it any more


@pytest.mark.parametrize("renew", [True, False])
@pytest.mark.usefixtures("memory_store")
def test_who_takes_a_lock_on_may_ask_for_another_lease(renew: bool) -> None:
    ticket = Ticket("text", "default", {"p:n": 1}, 10.0, renew, "p:", 3.0, 2.0, 1.0)
    store = registry().store("default")
    as_it_was = Spec(store, ("p:n",), 10.0, 0.0, renew, 3.0, hold_at_least=2.0, template="shop.py:7", prefix="p:")
    for expire, renewed, spec in [
        (None, None, as_it_was),
        ("20s", None, as_it_was._replace(expire=20.0)),
        (None, not renew, as_it_was._replace(renew=not renew)),
    ]:
        scope = handover.receiver(ticket, expire, renewed, THREADS, "shop.py:7")
        assert (scope.spec, scope.in_block) == (spec, False)
    with pytest.raises(ConfigurationError, match="expire is 0"):
        handover.receiver(ticket, 0, None, THREADS, "")
    with pytest.raises(ConfigurationError, match="renew is 'yes'"):
        handover.receiver(ticket, None, "yes", THREADS, "")  # type: ignore[arg-type]


@pytest.mark.usefixtures("memory_store")
def test_the_store_knows_who_has_taken_it_on() -> None:
    lease = attach(lock("a").acquire().detach())
    [line] = drive(registry().store("default").port(THREADS).inspect())
    assert line.holder == scope_of(lease).claimant()
    lease.release()


@pytest.mark.usefixtures("memory_store")
def test_a_call_that_was_let_through_has_nothing_to_hand_over() -> None:
    scope = Scope(Spec(registry().store("default"), ("a",), 10.0, 0.0), THREADS)
    with pytest.raises(NotHeld, match=r"^There is no lock to hand over: this call was let through without one\.$"):
        drive(handover.detach(scope, 10.0, THREADS))
