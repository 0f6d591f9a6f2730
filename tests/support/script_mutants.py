"""Mutants of the Lua scripts, each wrong in one place, and the case that finds it.

What a caller's safety hangs on, the simulation finds, too (``simulation/mutants.py``). Here are those that it does not
come to: what scripts say of the locks, and how each answers a second copy. A case is one of the stores' contract, or
one of ``Listed``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from distlock_web.backends.redis.scripts.calls import Script
from distlock_web.core.backend import SHARED, Busy, Granted
from distlock_web.core.runtime import new_token
from distlock_web.testing.contract import StoreContract
from distlock_web.testing.contract.base import NAME, case, claim
from distlock_web.testing.harness import Harness


class ScriptMutant(NamedTuple):
    """In the file of this script ``new`` stands in place of ``old``, and this case fails."""

    file: str
    old: str
    new: str
    case: str


class Listed(StoreContract):
    """What the listing says, where the contract leaves it to the store."""

    @case
    async def names_and_ends(self, harness: Harness) -> None:
        """Of what is held, in the order in which it ends, also in parts; not of what has ended without a release."""
        port: Any = harness.port
        for number in range(5):
            await port.acquire(claim(expire=100.0 - number, name=f"{NAME}:{number}"), 0)
        await port.acquire(claim(expire=0.02, name=f"{NAME}:short"), 0)
        await harness.until_free(f"{NAME}:short")
        released = claim(name=f"{NAME}:released")
        await port.acquire(released, 0)
        await port.release(released)
        names = [f"{NAME}:{number}" for number in (4, 3, 2, 1, 0)]
        assert await port.names() == (5, names)
        assert await port.names(2) == (5, names[:2])

    @case
    async def who_waits(self, harness: Harness) -> None:
        """By the order in which they came, also where their process has the lock."""
        port: Any = harness.port
        await port.acquire(claim(new_token(harness.store.ident)), 0)
        for holder in ("c", "a", "b"):
            await port.acquire(claim(new_token(harness.store.ident))._replace(holder=holder), 60)
        assert [each.holder for each in await port.waiters(NAME, 10)] == ["c", "a", "b"]
        assert [each.holder for each in await port.waiters(NAME, 2)] == ["c", "a"]
        line = await harness.shown(NAME)
        assert (line.waiters, line.state) == (3, "held")
        [waiting] = await port.waiters(NAME, 1)
        assert line.waiting_since == waiting.since

    @case
    async def a_full_queue(self, harness: Harness) -> None:
        port = harness.port
        await port.acquire(claim(new_token(harness.store.ident)), 0)
        waiting = [claim(new_token(harness.store.ident))._replace(max_waiters=2) for _ in range(3)]
        answers = [answer for one in waiting if isinstance(answer := await port.acquire(one, 60), Busy)]
        assert [answer.full for answer in answers] == [False, False, True]

    @case
    async def places_are_shown(self, harness: Harness) -> None:
        """Of several holders each has a line, and none whoever has released, or was released by force."""
        port = harness.port
        places = [claim()._replace(token=new_token().limited(3)) for _ in range(3)]
        fences = [answer.fence for one in places if isinstance(answer := await port.acquire(one, 0), Granted)]
        assert [(line.fence, line.holders, line.limit) for line in await port.inspect([NAME])] == [
            (fence, 3, 3) for fence in fences
        ]
        await port.release(places[0])
        await port.revoke(NAME, fences[1] or 0)
        assert [line.fence for line in await port.inspect([NAME])] == fences[2:]

    @case
    async def who_has_died_is_passed_over(self, harness: Harness) -> None:
        """The first in the queue is of a process that does not listen: the next one has the lock."""
        port: Any = harness.port
        holder, dead, following = claim(), claim(new_token("d" * 16)), claim(new_token(harness.store.ident))
        await port.acquire(holder, 0)
        await port.acquire(following._replace(holder="the next"), 60)
        await port._ask(dead, True, join=True, place=1)  # without a listener, and in front
        await port.release(holder)
        assert [line.holder for line in await port.inspect([NAME])] == ["the next"]

    @case
    async def whoever_is_not_heard_is_told_so(self, harness: Harness) -> None:
        port: Any = harness.port
        await port.acquire(claim(), 0)
        await port.acquire(claim(new_token(harness.store.ident)), 60)
        answers = [
            await port._ask(claim(new_token(ident)), True, join=True) for ident in (harness.store.ident, "d" * 16)
        ]
        assert [answer.unheard for answer in answers] == [False, True]

    @case
    async def one_of_two_that_wait_leaves(self, harness: Harness) -> None:
        """Of the same process: the other one has the lock."""
        port = harness.port
        holder, leaving, staying = claim(), *(claim(new_token(harness.store.ident)) for _ in range(2))
        await port.acquire(holder, 0)
        for one in (leaving, staying._replace(holder="who stays")):
            await port.acquire(one, 60)
        await port.cancel(leaving)
        await port.release(holder)
        assert [line.holder for line in await port.inspect([NAME])] == ["who stays"]

    @case
    async def one_of_many_leaves(self, harness: Harness) -> None:
        """Its place is handed on; who was late, or was released by force, is told so."""
        port, limit = harness.port, 40
        late, *places = [claim()._replace(token=new_token().limited(limit)) for _ in range(limit)]
        fences = [answer.fence for one in places if isinstance(answer := await port.acquire(one, 0), Granted)]
        assert isinstance(await port.acquire(late._replace(expire=0.1), 0), Granted)

        async def ended() -> bool:
            return len(await port.inspect([NAME])) == limit - 1

        await harness.until(ended)
        assert await port.release(late) == "expired"
        assert isinstance(await port.acquire(late, 0), Granted)
        waiting = claim()._replace(token=new_token(harness.store.ident).limited(limit))
        assert isinstance(await port.acquire(waiting, 60), Busy)
        assert await port.release(places[0]) is None
        assert len(await port.inspect([NAME])) == limit
        assert await port.release(places[1]) is None
        assert len(await port.inspect([NAME])) == limit - 1
        await port.revoke(NAME, fences[2] or 0)
        assert await port.release(places[2]) == "revoked"

    @case
    async def the_last_of_many_readers_leaves(self, harness: Harness) -> None:
        """The others were released by force, of whom there are traces: who waits has the lock."""
        port, readers = harness.port, [claim()._replace(token=new_token().limited(SHARED)) for _ in range(40)]
        fences = [answer.fence for one in readers if isinstance(answer := await port.acquire(one, 0), Granted)]
        await port.acquire(claim(new_token(harness.store.ident)), 60)
        for fence in fences[1:]:
            await port.revoke(NAME, fence or 0)
        await port.release(readers[0])
        assert [(line.fence in fences, line.waiters) for line in await port.inspect([NAME])] == [(False, 0)]

    @case
    async def a_reader_finds_who_has_died(self, harness: Harness) -> None:
        """A writer of a process that does not listen stands in front of one of its own: it is passed over."""
        port: Any = harness.port
        readers = [claim(new_token(harness.store.ident).limited(SHARED)) for _ in range(40)]
        for one in readers:
            await port.acquire(one, 0)
        await port.acquire(claim(new_token(harness.store.ident)), 60)
        await port._ask(claim(new_token("d" * 16)), True, join=True, place=1)
        assert sum(line.waiters for line in await port.inspect([NAME])) == 2
        await port.release(readers[0])
        assert sum(line.waiters for line in await port.inspect([NAME])) == 1


REDIS: dict[str, ScriptMutant] = {
    "a cancel takes the lock from whoever has it": ScriptMutant(
        "cancel", "lock and lock.token == token and (", "lock and (", "test_cancel_twice_leaves_the_queue_or_gives_back"
    ),
    "a cancel leaves its place in the queue": ScriptMutant(
        "cancel",
        "leave(string.sub(token, 1, 16), token",
        "tostring(token",
        "test_cancel_twice_leaves_the_queue_or_gives_back",
    ),
    "a cancel gives nothing back": ScriptMutant(
        "cancel",
        "  let_go(lock, 'released', tonumber(ARGV[4]))\n",
        "",
        "test_cancel_twice_leaves_the_queue_or_gives_back",
    ),
    "a cancel of one of several gives nothing back": ScriptMutant(
        "cancel",
        "  let_go_share(lock, token, 'released', tonumber(ARGV[4]))\n",
        "",
        "test_each_place_has_a_lease_and_a_fence_of_its_own",
    ),
    "a release by force does not ask for the fence": ScriptMutant(
        "revoke", "lock.fence ~= tonumber(ARGV[1])", "false", "test_revoke_frees_the_holder_of_this_fence_only"
    ),
    "a release by force takes what is done": ScriptMutant(
        "revoke", " or (lock.record ~= nil) ~= (ARGV[2] == '1')", "", "test_what_is_forgotten_is_free"
    ),
    "nobody is told of a release by force": ScriptMutant(
        "revoke",
        "let_go(lock, 'revoked',",
        "let_go(lock, 'released',",
        "test_revoke_frees_the_holder_of_this_fence_only",
    ),
    "a second copy of detach is told that the lock is taken": ScriptMutant(
        "detach", "if lock and lock.token == ARGV[2] then", "if false then", "test_detach_and_attach_twice"
    ),
    "whoever has handed the lock over has it still": ScriptMutant(
        "detach", "ARGV[2], 'transit'", "ARGV[2], 'held'", "test_detach_and_attach_twice"
    ),
    "anybody may hand a lock over": ScriptMutant(
        "detach",
        "local lost = loss(lock, ARGV[1])",
        "local lost = lock and 0 or 1",
        "test_only_the_owners_token_opens_it_and_what_is_public_proves_nothing",
    ),
    "a second copy of attach is told that the ticket was used": ScriptMutant(
        "attach",
        "elseif lock.token == ARGV[2] and holds(lock) then",
        "elseif false then",
        "test_detach_and_attach_twice",
    ),
    "any ticket is one": ScriptMutant(
        "attach",
        "elseif lock.token ~= ARGV[1] or lock.state ~= 'transit' then",
        "elseif false then",
        "test_only_the_owners_token_opens_it_and_what_is_public_proves_nothing",
    ),
    "what was taken on is in transit still": ScriptMutant(
        "attach", "ARGV[2], 'contended', ARGV[4]", "ARGV[2], 'transit', ARGV[4]", "test_detach_and_attach_twice"
    ),
    "an extension changes nothing": ScriptMutant(
        "extend", "call('PEXPIRE', name, expire)", "call('PTTL', name)", "test_extend_never_shortens"
    ),
    "whoever extends what another has is told that it did": ScriptMutant(
        "extend", "free and 1 or 2\n", "free and 1 or 0\n", "test_extend_twice_and_for_several_at_once"
    ),
    "whoever extends a lock that was released by force is told that it did": ScriptMutant(
        "extend",
        "and 0 or state == 'revoked' and 3 or 1\n  end",
        "and 0 or state == 'revoked' and 0 or 1\n  end",
        "test_revoke_frees_the_holder_of_this_fence_only",
    ),
    "waiters are counted once more": ScriptMutant(
        "inspect", "local count, seen = 0, false", "local count, seen = 1, false", "test_take_twice_is_one_lock"
    ),
    "a lease ends with the queue": ScriptMutant(
        "inspect", "call('PTTL', name), count", "call('PTTL', queue), count", "test_take_twice_is_one_lock"
    ),
    "that a lock is contended is shown": ScriptMutant(
        "inspect",
        "(state == 'contended' or state == 'granted') and 'held' or state, holder",
        "state, holder",
        "who_waits",
    ),
    "a place that was released by force is shown": ScriptMutant(
        "inspect", "and state ~= 'revoked' and #fence", "and #fence", "places_are_shown"
    ),
    "what has ended is listed": ScriptMutant("names", "ARGV[1] == '' and now or ARGV[1]", "'0'", "names_and_ends"),
    "what has ended is counted": ScriptMutant(
        "names", "'ZCOUNT', KEYS[1], now", "'ZCOUNT', KEYS[1], '-inf'", "names_and_ends"
    ),
    "the first is left out": ScriptMutant("names", "'LIMIT', ARGV[2]", "'LIMIT', ARGV[2] + 1", "names_and_ends"),
    "nobody knows who came first": ScriptMutant(
        "waiters", "table.insert(answer, line[i + 1])", "table.insert(answer, '0')", "who_waits"
    ),
    "those of one process are left out": ScriptMutant(
        "waiters", "KEYS[2] .. ':' .. process, 0, last,", "KEYS[2] .. ':' .. process, 0, 0,", "who_waits"
    ),
    "each process is shown twice": ScriptMutant("waiters", "  seen[process] = true\n", "", "who_waits"),
    "what is done is listed with the oldest in front": ScriptMutant(
        "done", "'ZREVRANGE'", "'ZRANGE'", "test_it_is_listed_apart_from_what_is_held_the_newest_first"
    ),
    "of what is done the newest is left out": ScriptMutant(
        "done", "KEYS[1], '0', ", "KEYS[1], '1', ", "test_it_is_listed_apart_from_what_is_held_the_newest_first"
    ),
    "of what is done nothing is listed": ScriptMutant(
        "done", "ARGV[1] - 1", "-ARGV[1] - 1", "test_it_is_listed_apart_from_what_is_held_the_newest_first"
    ),
    "a release leaves the lock listed": ScriptMutant(
        "release", "  call('DEL', N)\n  call('ZREM', INDEX, N)\n", "  call('DEL', N)\n", "names_and_ends"
    ),
    "a release keeps nothing taken": ScriptMutant(
        "release",
        "elseif cooldown ~= '0' then",
        "elseif false then",
        "test_a_lock_in_cooldown_is_not_free_for_its_time",
    ),
    "what is done is listed nowhere": ScriptMutant(
        "finish",
        "call('ZADD', DONE, format('%d', clock()), N)\n",
        "",
        "test_it_is_listed_apart_from_what_is_held_the_newest_first",
    ),
    "the place of one that leaves is handed to nobody": ScriptMutant(
        "_ending", "  lock = hand_over(lock, known)\n", "", "one_of_many_leaves"
    ),
    "who was released by force is told that it was in time": ScriptMutant(
        "_ending", "return share.state == 'revoked' and 3 or 0", "return 0", "one_of_many_leaves"
    ),
    "who has died is handed the lock": ScriptMutant(
        "_news", "channel(process))[2] > 0", "channel(process))[2] >= 0", "who_has_died_is_passed_over"
    ),
    "a lock in cooldown is shown as held": ScriptMutant(
        "_ending",
        "  lock.state = 'cooldown'\n",
        "  lock.state = 'held'\n",
        "test_a_lock_in_cooldown_is_not_free_for_its_time",
    ),
    "whoever is waited for holds nothing": ScriptMutant(
        "_state", " or lock.state == 'contended'", "", "test_cancel_twice_leaves_the_queue_or_gives_back"
    ),
    "whoever asks again stands at the end": ScriptMutant(
        "_join", "line, 'NX', ", "line, ", "test_join_twice_is_one_place"
    ),
    "others of the same process do not count": ScriptMutant(
        "_join", "seen = call('ZCARD', line),", "seen = 0,", "a_full_queue"
    ),
    "whoever asks again is told another fence": ScriptMutant(
        "_enter", "return {lock.fence, now}", "return {lock.fence + 1, now}", "test_take_twice_is_one_lock"
    ),
    "one more waits than max_waiters says": ScriptMutant(
        "_join", "return count >= most", "return count > most", "a_full_queue"
    ),
    "time is counted in milliseconds": ScriptMutant(
        "_lock",
        "moment = time[1] * 1000000 + time[2]",
        "moment = time[1] * 1000 + math.floor(time[2] / 1000)",
        "test_inspect_shows_who_holds_what_and_since_when",
    ),
    "readers and others with a limit are together": ScriptMutant(
        "_admission",
        "(one >= SHARED) == (other >= SHARED) and math.min(one, other) or 1",
        "math.min(one, other)",
        "test_readers_and_those_with_a_limit_exclude_each_other",
    ),
    "one of many that leaves stays": ScriptMutant(
        "_many", "  allow_writes('HDEL', N, token)", "  allow_writes()", "one_of_many_leaves"
    ),
    "one of many whose lease has ended is told that it had it": ScriptMutant(
        "_many", " if ends <= clock() then", " if ends == 0 then", "one_of_many_leaves"
    ),
    "one of many that was released by force is not told": ScriptMutant(
        "_many", "(state == 'held' or state == 'granted') and", "state and", "one_of_many_leaves"
    ),
    "the place of one of many is handed to nobody": ScriptMutant(
        "_many", "limit_of(token) >= SHARED and waits", "waits", "one_of_many_leaves"
    ),
    "the last of many leaves the lock to nobody": ScriptMutant(
        "_many", "end_of(some[i + 1]) >= till", "end_of(some[i + 1]) >= 0", "the_last_of_many_readers_leaves"
    ),
    "who waits in vain for readers is waited for": ScriptMutant(
        "_many", " and listens(process)", "", "a_reader_finds_who_has_died"
    ),
    "one of many has its process stand in front": ScriptMutant(
        "_many",
        "if place and not (first and tonumber(at) <= tonumber(place)) then",
        "if place then",
        "a_reader_finds_who_has_died",
    ),
    "a release looks for nobody": ScriptMutant(
        "_queue",
        "    lock.state = 'contended'\n    call('SET', N, text(lock), 'KEEPTTL')\n",
        "",
        "who_has_died_is_passed_over",
    ),
    "who leaves the queue stands in it still": ScriptMutant(
        "_queue",
        "if call('ZREM', QUEUE .. ':' .. process, entry) == 1 and",
        "if entry ~= nil and",
        "test_cancel_twice_leaves_the_queue_or_gives_back",
    ),
    "with one that leaves the queue all of its process leave": ScriptMutant(
        "_queue", "== 1 and not set_place(process) then", "== 1 then", "one_of_two_that_wait_leaves"
    ),
    "whoever is not heard is told that it is": ScriptMutant(
        "_news", "found[process] = counts[2 * i] > 0", "found[process] = true", "whoever_is_not_heard_is_told_so"
    ),
    "all processes are told as one": ScriptMutant(
        "_news",
        "return 'distlock:wake:' .. process .. node",
        "return 'distlock:wake:' .. node",
        "who_has_died_is_passed_over",
    ),
    "a lease that was handed over is listed as ended": ScriptMutant(
        "_index",
        "local ends = format('%d', now + ms * 1000)",
        "local ends = format('%d', now)",
        "test_each_holder_has_a_line_and_one_can_be_released_by_force",
    ),
    "what has to be removed stays": ScriptMutant(
        "_index", "    return call(...)\n", "    return\n", "places_are_shown"
    ),
    "a place that was released by force counts": ScriptMutant(
        "_sharing",
        "share.state ~= 'released' and share.state ~= 'revoked'",
        "share.state ~= 'released'",
        "test_each_holder_has_a_line_and_one_can_be_released_by_force",
    ),
    "of several limits the largest counts": ScriptMutant(
        "_sharing",
        "math.min(lock.limit, limit_of(token))",
        "math.max(lock.limit, limit_of(token))",
        "test_of_several_limits_the_smallest_counts",
    ),
    "behind one that has died nobody is handed the lock": ScriptMutant(
        "_hand_over",
        "    if not more then\n      return lock\n    end\n",
        "    do return lock end\n",
        "who_has_died_is_passed_over",
    ),
    "of what is done nothing is told": ScriptMutant(
        "_enter",
        "return taken(lock, math.max(call('PTTL', N), 1), lock.record)",
        "return taken(lock, math.max(call('PTTL', N), 1))",
        "test_who_asks_is_told_what_is_done_and_nobody_changes_it",
    ),
    "one of several takes the lock for itself": ScriptMutant(
        "acquire", " and not string.find(token, '/', 1, true)", "", "places_are_shown"
    ),
    "nobody knows who has a free lock": ScriptMutant(
        "acquire", "' - ' .. holder, 'NX'", "' - ', 'NX'", "test_inspect_shows_who_holds_what_and_since_when"
    ),
    "whoever was released by force is told that it was in time": ScriptMutant(
        "_state",
        "return holds(lock) and 0 or lock.state == 'revoked' and 3 or 1",
        "return 0",
        "test_revoke_frees_the_holder_of_this_fence_only",
    ),
    "a token that was released by force is not told": ScriptMutant(
        "_state",
        "before[#before + 1] = (each.state == 'revoked' and '!' or '') .. token",
        "before[#before + 1] = token",
        "test_revoke_frees_the_holder_of_this_fence_only",
    ),
}

REDLOCK: dict[str, ScriptMutant] = {
    "a node votes for everybody": ScriptMutant(
        "vote", "if lock and lock.state ~= 'revoked' and not ours then", "if false then", "test_take_twice_is_one_lock"
    ),
    "a second vote for one token has another fence": ScriptMutant(
        "vote",
        "local ours = lock and lock.token == token",
        "local ours = false and lock.token == token",
        "test_take_twice_is_one_lock",
    ),
    "nobody knows from whom a vote was taken": ScriptMutant(
        "vote",
        "local before = lock and '!' .. lock.token or '-'",
        "local before = '-'",
        "test_revoke_frees_the_holder_of_this_fence_only",
    ),
    "anybody may take a vote back": ScriptMutant(
        "release",
        "local lost = loss(lock, token)",
        "local lost = lock and 0 or 1",
        "test_only_the_owners_token_opens_it_and_what_is_public_proves_nothing",
    ),
    "a vote is not taken back": ScriptMutant(
        "release", "    call('DEL', N)\n", "", "test_release_twice_is_no_loss_and_does_not_touch_the_successor"
    ),
    "a lock in cooldown is free": ScriptMutant(
        "release", "if cooldown > 0 then", "if false then", "test_a_lock_in_cooldown_is_not_free_for_its_time"
    ),
    "a release by force is forgotten": ScriptMutant(
        "revoke",
        "write(lock, math.max(call('PTTL', N), 5000))\n",
        "",
        "test_revoke_frees_the_holder_of_this_fence_only",
    ),
    "a release by force frees nothing": ScriptMutant(
        "revoke", "lock.state = 'revoked'", "lock.state = 'held'", "test_revoke_frees_the_holder_of_this_fence_only"
    ),
    "whoever releases by force is told that it did not": ScriptMutant(
        "revoke", "return 1", "return 0", "test_revoke_frees_the_holder_of_this_fence_only"
    ),
    "an extension changes nothing": ScriptMutant(
        "extend", "call('PEXPIRE', N, expire)", "call('PTTL', N)", "test_extend_never_shortens"
    ),
    "a renewal shortens": ScriptMutant(
        "extend", "call('PTTL', N) < expire then", "call('PTTL', N) > 0 then", "test_extend_never_shortens"
    ),
    "whoever extends what another has is told that it did": ScriptMutant(
        "extend",
        "local lost = known and loss(lock, token) or 2",
        "local lost = 0",
        "test_extend_twice_and_for_several_at_once",
    ),
    "a lock is shown with no time left": ScriptMutant(
        "inspect", "call('PTTL', name), waiters", "-1, waiters", "test_take_twice_is_one_lock"
    ),
    "nobody is shown as the holder": ScriptMutant(
        "inspect",
        "= {fence, state, holder,",
        "= {fence, state, '',",
        "test_inspect_shows_who_holds_what_and_since_when",
    ),
    "whoever waits is counted once more": ScriptMutant(
        "inspect", "call('PTTL', name), waiters,", "call('PTTL', name), waiters + 1,", "test_take_twice_is_one_lock"
    ),
    "every token is the owner's": ScriptMutant(
        "_node",
        "elseif lock.token == token then",
        "elseif true then",
        "test_only_the_owners_token_opens_it_and_what_is_public_proves_nothing",
    ),
    "nobody is told that its vote was taken": ScriptMutant(
        "_node",
        "return lock.before == '!' .. token and 3 or lock",
        "return lock",
        "test_revoke_frees_the_holder_of_this_fence_only",
    ),
}


#: What is read by itself: the file, and what stands there instead of what. Each is found by what the script answers.
INDEXED: dict[str, tuple[str, str]] = {
    "the slots beside those with an index": ("i - 2", "i - 1"),
    "the slots without an index": ("there ~= 0", "there == 0"),
    "not the first of the slots": ("for i = 2, #ARGV", "for i = 3, #ARGV"),
}
FOUND: dict[str, tuple[str, str]] = {
    "a node with another clock is one": ("math.abs(now - ARGV[2]) > tonumber(ARGV[3])", "false"),
    "a node of another quorum is ours": ("its ~= who", "false"),
    "to look changes something": ("if ARGV[4] == 'look' then", "if false then"),
    "a node is new each time that it is asked": ("elseif its_run == run then", "elseif false then"),
}


@contextmanager
def mutated(mutant: ScriptMutant, package: ModuleType) -> Iterator[None]:
    """The script of this file; or all that it is a part of."""
    old, new = mutant.old.encode(), mutant.new.encode()
    found = package._read(mutant.file).count(old)
    assert found == 1, f"a mutant no longer fits: {found} times {mutant.old!r}"
    if mutant.file.startswith("_"):
        scripts = [each for each in vars(package).values() if isinstance(each, Script) and old in each.source]
    else:
        scripts = [getattr(package, mutant.file.upper())]
    before = [script.source for script in scripts]
    for script in scripts:
        script.__init__(script.source.replace(old, new), script.gives)  # type: ignore[misc]
    try:
        yield
    finally:
        for script, source in zip(scripts, before, strict=True):
            script.__init__(source, script.gives)  # type: ignore[misc]
