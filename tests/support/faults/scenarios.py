"""What is done while one message goes wrong: each scenario is a part for each of its parties, by the public API.

The first party is ``a``. Its messages and those of the others are all tried. A part waits for the others with ``until``
and ``waiting``, which end by themselves where the other one has failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from distlock_web import BackendUnavailable, Lease
from distlock_web.core.backend import SHARED
from distlock_web.testing.harness import Harness

from .party import Party

Part: TypeAlias = Callable[[Party], Awaitable[None]]


class Scenario(NamedTuple):
    parts: Mapping[str, Part]
    #: What each party says without any fault, so that the scenario is what its name says.
    clean: Mapping[str, list[str]]
    needs: frozenset[str] = frozenset()  #: of ``Capabilities``
    modes: frozenset[str] = frozenset({"threads", "asyncio"})
    processes: bool = False  #: its parties have to be processes
    longest: float = 1.0  #: of what is taken, in leases


def _pausing(p: Party, leases: float) -> Callable[[Lease], Awaitable[None]]:
    return lambda lease: p.harness.sleep(leases * p.lease)


async def takes(p: Party) -> None:
    await p.hold(p.lock())


async def takes_twice(p: Party) -> None:
    """By hand, and again: what the first one has left is in the way."""
    for _ in range(2):
        await p.hold(p.lock(wait=3 * p.lease))


# A lock that another one has ------------------------------------------------------------------------------------------


async def holds_until_asked(p: Party) -> None:
    async def during(lease: Lease) -> None:
        p.tell("held")
        await p.until("asked", "a")

    await p.hold(p.lock(renew=True), during)


async def asks_in_vain(p: Party) -> None:
    await p.until("held", "b")
    await p.hold(p.lock(wait=0))
    p.tell("asked")


async def holds_until_waited_for(p: Party) -> None:
    async def during(lease: Lease) -> None:
        p.tell("held")
        await p.waiting(1, "a")

    await p.hold(p.lock(renew=True), during)
    p.tell("left")


async def is_handed_it(p: Party) -> None:
    await p.until("held", "b")
    await p.hold(p.lock(wait=4 * p.lease), _pausing(p, 0.65))


async def comes_later(p: Party) -> None:
    await p.until("left", "b")
    await p.hold(p.lock(wait=4 * p.lease))


async def waits_in_vain(p: Party) -> None:
    await p.until("held", "b")
    await p.hold(p.lock(wait=0.5 * p.lease))
    p.tell("asked")


async def is_cancelled(p: Party) -> None:
    await p.until("held", "b")
    name = p.stored()

    async def waits(harness: Harness) -> bool:
        line = None
        with suppress(BackendUnavailable):  # the machine is busy
            line = await harness.line(name)
        return line is not None and line.waiters > 0

    await p.interrupted(lambda: p.hold(p.lock(wait=4 * p.lease)), waits)
    p.tell("asked")


async def waits_in_a_crowd(p: Party) -> None:
    """And goes on with another lock, as web processes do: it still listens when its place is served."""
    await p.until("held", "b")
    await p.hold(p.lock(wait=6 * p.lease))
    await p.hold(p.lock("2", wait=0.5 * p.lease))


async def holds_for_a_crowd(p: Party) -> None:
    async def during(lease: Lease) -> None:
        p.tell("held")
        await p.waiting(3, "a")

    await p.hold(p.lock(renew=True), during)


# A lease that is changed ----------------------------------------------------------------------------------------------


async def extends(p: Party) -> None:
    async def during(lease: Lease) -> None:
        await p.harness.extend(lease, 2 * p.lease)
        p.tell("held")
        await p.harness.sleep(1.2 * p.lease)
        lease.raise_if_lost()

    await p.hold(p.lock(), during)


async def renews(p: Party) -> None:
    async def during(lease: Lease) -> None:
        p.tell("held")
        await p.harness.sleep(2.2 * p.lease)  # longer than anybody is stopped

    await p.hold(p.lock(renew=True), during)


async def extends_beside_renewals(p: Party) -> None:
    async def during(lease: Lease) -> None:
        """The first renewal comes right after it, the next one when the longer lease is about to end."""
        p.tell("held")
        await p.harness.sleep(0.3 * p.lease)
        await p.harness.extend(lease, 4 * p.lease)
        await p.harness.sleep(1.5 * p.lease)

    await p.hold(p.lock(renew=True, on_lost="warn"), during)


async def comes_again_and_again(p: Party) -> None:
    """Whoever believes wrongly to have it is found out by one who asks all the time."""
    await p.until("held", "a")
    for _ in range(4):
        await p.hold(p.lock(wait=p.lease))


async def keeps_it_taken(p: Party) -> None:
    await p.hold(p.lock(hold_at_least=1.5 * p.lease), keep=1.5 * p.lease)
    p.tell("held")


async def waits_behind(p: Party) -> None:
    await p.until("held", "a")
    await p.hold(p.lock(wait=4 * p.lease))


# A hand-over ----------------------------------------------------------------------------------------------------------


async def detaches(p: Party) -> None:
    async def part() -> None:
        lease = await p.acquire(p.lock())
        p.tell("ticket", await p.detach(lease, 3 * p.lease))

    await p.trying(part)


async def attaches(p: Party) -> None:
    ticket = await p.until("ticket", "a")
    if ticket is None:
        return

    async def part() -> None:
        lease = await p.harness.attach(ticket)
        await p.hold(lease)

    await p.trying(part)


# Several locks, several holders ---------------------------------------------------------------------------------------


async def holds_the_second(p: Party) -> None:
    async def during(lease: Lease) -> None:
        p.tell("held")
        await p.waiting(1, "a", "2")

    await p.hold(p.lock("2", renew=True), during)


async def takes_two(p: Party) -> None:
    await p.until("held", "b")
    await p.hold(p.lock("1", "2", wait=4 * p.lease), _pausing(p, 0.2))


async def is_first_of_two(p: Party) -> None:
    async def during(lease: Lease) -> None:
        p.tell("held")
        await p.waiting(1, "c")

    await p.hold(p.lock(limit=2, renew=True), during, limit=2)


async def is_second_of_two(p: Party) -> None:
    await p.until("held", "a")

    async def during(lease: Lease) -> None:
        p.tell("full")
        await p.waiting(1, "c")

    await p.hold(p.lock(limit=2, renew=True), during, limit=2)


async def is_third_of_two(p: Party) -> None:
    await p.until("full", "b")
    await p.hold(p.lock(limit=2, wait=4 * p.lease), limit=2)


async def reads_first(p: Party) -> None:
    async def during(lease: Lease) -> None:
        p.tell("held")
        await p.waiting(2, "c")

    await p.hold(p.lock(shared=True, renew=True), during, limit=SHARED)


async def writes(p: Party) -> None:
    await p.until("held", "a")
    await p.hold(p.lock(wait=4 * p.lease), _pausing(p, 0.2))


async def reads_last(p: Party) -> None:
    await p.until("held", "a")
    await p.waiting(1, "b")
    await p.hold(p.lock(shared=True, wait=4 * p.lease), limit=SHARED)


async def takes_by_force(p: Party) -> None:
    await p.until("held", "a")

    async def part() -> None:
        line = await p.shown()
        if line is not None and line.fence is not None:
            p.record("revoked", line.name, line.fence)
            await p.harness.port.revoke(line.name, line.fence)
        await p.hold(p.lock(wait=4 * p.lease))

    await p.trying(part)
    p.tell("asked")


async def loses_it_by_force(p: Party) -> None:
    async def during(lease: Lease) -> None:
        p.tell("held")
        await p.until("asked", "b")

    await p.hold(p.lock(), during)


async def is_the_only_waiter(p: Party) -> None:
    await p.until("held", "b")
    await p.hold(p.lock(wait=4 * p.lease, max_waiters=1))


async def is_one_waiter_too_many(p: Party) -> None:
    await p.until("held", "b")
    await p.waiting(1, "a")
    await p.hold(p.lock(wait=4 * p.lease, max_waiters=1))
    p.tell("refused")


async def holds_until_one_is_refused(p: Party) -> None:
    async def during(lease: Lease) -> None:
        p.tell("held")
        await p.until("refused", "c")

    await p.hold(p.lock(renew=True), during)


# Once -----------------------------------------------------------------------------------------------------------------


async def runs_once(p: Party) -> None:
    for _ in range(2):
        await p.once()


async def runs_while_asked(p: Party) -> None:
    async def during() -> None:
        p.tell("held")
        await p.harness.sleep(0.5 * p.lease)

    await p.once(during)


async def asks_while_it_runs(p: Party) -> None:
    await p.until("held", "a")
    for _ in range(2):
        await p.once()


async def commits(p: Party) -> None:
    await p.until_commit()


def _scenario(
    clean: Mapping[str, list[str]],
    *needs: str,
    processes: bool = False,
    modes: str = "threads asyncio",
    longest: float = 1.0,
    **parts: Part,
) -> Scenario:
    return Scenario(parts, clean, frozenset(needs), frozenset(modes.split()), processes, longest)


_HELD = ["acquired", "done"]

SCENARIOS: dict[str, Scenario] = {
    "free": _scenario({"a": _HELD * 2}, a=takes_twice),
    "busy": _scenario({"a": ["LockBusy"], "b": _HELD}, a=asks_in_vain, b=holds_until_asked),
    "handed": _scenario(
        {"a": _HELD, "b": _HELD, "c": _HELD}, a=is_handed_it, b=holds_until_waited_for, c=comes_later
    ),
    "crowd": _scenario(
        {"a": _HELD * 2, "b": _HELD, "c": _HELD * 2, "d": _HELD * 2},
        a=waits_in_a_crowd, b=holds_for_a_crowd, c=waits_in_a_crowd, d=waits_in_a_crowd,
    ),
    "timed-out": _scenario({"a": ["LockBusy"], "b": _HELD}, a=waits_in_vain, b=holds_until_asked),
    "cancelled": _scenario(
        {"a": ["interrupted"], "b": _HELD}, processes=True, a=is_cancelled, b=holds_until_asked
    ),
    "extend": _scenario({"a": _HELD}, longest=2.0, a=extends, b=comes_again_and_again),
    "renewal": _scenario({"a": _HELD}, a=renews, b=comes_again_and_again),
    "extend-renewed": _scenario({"a": _HELD}, longest=4.0, a=extends_beside_renewals, b=comes_again_and_again),
    "hold-at-least": _scenario({"a": _HELD, "b": _HELD}, longest=1.5, a=keeps_it_taken, b=waits_behind),
    "hand-over": _scenario({"a": _HELD, "b": [*_HELD, "done"]}, "transfer", longest=3.0, a=detaches, b=attaches),
    "two-keys": _scenario({"a": _HELD, "b": _HELD}, a=takes_two, b=holds_the_second),
    "limit": _scenario(
        {"a": _HELD, "b": _HELD, "c": _HELD}, "sharing",
        a=is_first_of_two, b=is_second_of_two, c=is_third_of_two,
    ),
    "readers": _scenario(
        {"a": _HELD, "b": _HELD, "c": _HELD}, "sharing", a=reads_first, b=writes, c=reads_last
    ),
    "once": _scenario({"a": ["done", "done"]}, "records", a=runs_once),
    "once-asked": _scenario(
        {"a": ["done"], "b": ["done", "done"]}, "records", a=runs_while_asked, b=asks_while_it_runs
    ),
    "until-commit": _scenario({"a": ["done", "done"]}, "records", modes="threads", processes=True, a=commits),
    "by-force": _scenario(
        {"a": ["acquired", "LeaseLost"], "b": [*_HELD, "done"]}, a=loses_it_by_force, b=takes_by_force
    ),
    "max-waiters": _scenario(
        {"a": _HELD, "b": _HELD, "c": ["LockBusy"]}, "bounded_queue",
        a=is_the_only_waiter, b=holds_until_one_is_refused, c=is_one_waiter_too_many,
    ),
}  # fmt: skip
