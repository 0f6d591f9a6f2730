"""Mutants of our code, each wrong in one place, and a seed that finds it: what the simulation can find, it has to find.

``python -m tests.support.simulation.mutants`` looks for seeds anew, among the first 2,000.
"""

from __future__ import annotations

import argparse
import gc
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from .program import Program
from .scenario import Result, run
from .scenarios import SCENARIOS

#: Seeds within which each has to be found.
WITHIN = 2000

_SCRIPTS = "backends/redis/scripts"


class Mutant(NamedTuple):
    """``seed``: one that finds it, with its scenario in front. In ``file`` stands ``new`` in place of ``old``."""

    seed: str
    file: str
    old: str
    new: str

    @property
    def scenario(self) -> str:
        return self.seed.rpartition("-")[0]

    @property
    def number(self) -> int:
        return int(self.seed.rpartition("-")[2])


MUTANTS: dict[str, Mutant] = {
    "a deadline is counted from the answer, not from the question": Mutant(
        "memory-92",
        "locks/hold.py",
        "self.deadline = granted.since + claim.expire",
        "self.deadline = now() + claim.expire",
    ),
    "whoever is interrupted while it asks leaves its place and its lock behind": Mutant(
        "memory-12",
        "locks/engine.py",
        """        if error is not refused:
            # The answer""",
        """        if False:
            # The answer""",
    ),
    "in memory a renewal is written over a longer extension": Mutant(
        "memory-0",
        "backends/memory.py",
        "                    owner.until = max(owner.until, moment + claim.expire)",
        "                    owner.until = moment + claim.expire",
    ),
    "in Redis a renewal is written over a longer extension": Mutant(
        "redis-3",
        f"{_SCRIPTS}/extend.lua",
        "if lost == 0 and call('PTTL', name) < tonumber(expire) then",
        "if lost == 0 then",
    ),
    "a free lock is set without looking whether it is still free": Mutant(
        "redis-0", f"{_SCRIPTS}/acquire.lua", "'NX', 'PX', expire) then", "'PX', expire) then"
    ),
    "anybody may release a lock": Mutant(
        "redis-105", f"{_SCRIPTS}/release.lua", "local lost = loss(lock, token)", "local lost = lock and 0 or 1"
    ),
    "fences are the time, also where a clock was set back": Mutant(
        "redis-4",
        f"{_SCRIPTS}/_index.lua",
        "math.max(now, floor + 1)",
        "now",
    ),
    "a waiter that is handed the lock stays in the queue": Mutant(
        "redis-3", f"{_SCRIPTS}/_hand_over.lua", "call('ZPOPMIN', line)[1]", "call('ZRANGE', line, '0', '0')[1]"
    ),
    "a grant is counted from when it was read": Mutant(
        "redis-19",
        "backends/redis/transport/waiter.py",
        "since = max(self.sent_at, min(self.sent_at + passed * 0.99, news.last_empty_poll))",
        "since = now()",
    ),
    "a renewal is counted from its answer": Mutant(
        "memory-66",
        "locks/hold.py",
        "self.deadline = max(self.deadline, since + expire - drift(expire))",
        "self.deadline = max(self.deadline, now() + expire - drift(expire))",
    ),
    "what was put off until the server answers is forgotten": Mutant(
        "redis-outage-22",
        "kit/outage.py",
        "        self._postponed.append(Postponed(moment + after, moment + within, work))\n",
        "",
    ),
    "what is taken on keeps the time that it had on its way": Mutant(
        "redis-7", f"{_SCRIPTS}/attach.lua", "write(lock, ARGV[3])", "call('SET', N, text(lock), 'KEEPTTL')"
    ),
    "a copy of a process has the locks of the first one": Mutant(
        "redis-61", "core/process.py", "            Process.generation += 1\n", ""
    ),
    "the loss of several locks is told several times": Mutant(
        "memory-148", "locks/scope.py", "for call in callbacks:", "for call in (callback,):"
    ),
    "an undo that comes late takes back a later vote": Mutant(
        "redlock-late-50", "backends/redlock/scripts/release.lua", "attempt ~= '' and attempt ~= lock.attempt", "false"
    ),
    "a node without its data votes at once": Mutant(
        "redlock-clock-44",
        "backends/redlock/scripts/_node.lua",
        "if delay and now - born < delay then",
        "if false then",
    ),
    "the lease of a quorum is counted from its last answer": Mutant(
        "redlock-61", "backends/redlock/port.py", "return Granted(fence, begun)", "return Granted(fence, now())"
    ),
    "the clocks of votes are not compared": Mutant(
        "redlock-ahead-20",
        "backends/redlock/port.py",
        "margin, (at_least, at_most) = drift(claim.expire), quorum.apart(granted)",
        "margin, (at_least, at_most) = 0.0, (0.0, 0.0) if len(granted) >= quorum.needed else quorum.apart(granted)",
    ),
    "a majority is one node fewer": Mutant(
        "redlock-1",
        "backends/redlock/quorum.py",
        "self.needed = len(nodes) // 2 + 1",
        "self.needed = len(nodes) // 2",
    ),
    "what is done is free again": Mutant(
        "redis-once-0",
        f"{_SCRIPTS}/finish.lua",
        "lock.state, lock.holder = 'done',",
        "lock.state, lock.holder = 'cooldown',",
    ),
    "what is done is done again after half of its time": Mutant(
        "memory-once-24",
        "locks/kept.py",
        "return hold.since + scope.keep_for",
        "return hold.since + scope.keep_for / 2",
    ),
    "who is told that it is done hears of the one before": Mutant(
        "redis-once-0",
        f"{_SCRIPTS}/finish.lua",
        "lock.holder .. '\\n' .. record",
        "lock.holder .. '\\n' .. string.gsub(record, 'result\": %d+', 'result\": 7')",
    ),
    "one more has the lock than its limit lets": Mutant(
        "redis-shared-0", f"{_SCRIPTS}/_admission.lua", "lock.count < at_once(", "lock.count <= at_once("
    ),
    "a reader that comes later passes a writer that waits": Mutant(
        "redis-shared-2",
        f"{_SCRIPTS}/_enter.lua",
        "if not others and admits(lock, token) then",
        "if admits(lock, token) then",
    ),
    "who has died keeps its place": Mutant(
        "redis-shared-11",
        f"{_SCRIPTS}/_sharing.lua",
        "elseif tonumber(ends) > now then",
        "elseif tonumber(ends) > 0 then",
    ),
    "nobody knows from whom a place was taken": Mutant(
        "redis-shared-13", f"{_SCRIPTS}/revoke.lua", "math.max((share.ends - clock()) / 1000, TOMBSTONE)", "0"
    ),
    "of many that share a lock the last leaves it to nobody": Mutant(
        "redis-shared-50", f"{_SCRIPTS}/_many.lua", "end_of(some[i + 1]) >= till", "end_of(some[i + 1]) >= 0"
    ),
    "readers enter one by one": Mutant(
        "redis-shared-57", f"{_SCRIPTS}/_hand_over.lua", "if not together then", "if true then"
    ),
    "the limit of those that have the lock does not count": Mutant(
        "memory-shared-0",
        "backends/memory.py",
        "len(self.owners) < at_once(self.limit, token.limit)",
        "len(self.owners) < token.limit",
    ),
    "a writer that gives up does not let the readers behind it in": Mutant(
        "memory-shared-1320",
        "backends/memory.py",
        "                self._hand_over(lock)  # those behind",
        "                pass  # those behind",
    ),
    "a node votes for everybody": Mutant(
        "redlock-1",
        "backends/redlock/scripts/vote.lua",
        "if lock and lock.state ~= 'revoked' and not ours then",
        "if false then",
    ),
    "a cancel takes the lock from whoever has it": Mutant(
        "redis-0", f"{_SCRIPTS}/cancel.lua", "lock and lock.token == token and (", "lock and ("
    ),
    "the limit of those that have the lock does not count in Redis": Mutant(
        "redis-shared-1", f"{_SCRIPTS}/_admission.lua", "and math.min(one, other) or 1", "and math.max(one, other) or 1"
    ),
    "a lease in hand is entered by another acquire": Mutant(
        "memory-nested-0",
        "locks/reentry/entering.py",
        "    if scope.in_block:\n        return None\n",
        "    return None\n",
    ),
    "a lease that was entered elsewhere is its acquirer's still": Mutant(
        "memory-nested-0",
        "locks/reentry/chain.py",
        "return scope if scope is not None and (scope.entry is None or scope.entry is reference) else None",
        "return scope",
    ),
    "a lease is entered whoever is inside": Mutant(
        "memory-nested-1", "locks/reentry/entering.py", "if not free or scope.in_block:", "if False:"
    ),
    "who outlives a nested block is not told": Mutant(
        "memory-nested-1", "locks/reentry/gate.py", "            turn.outlive()\n", "            pass\n"
    ),
    "siblings do not take turns": Mutant(
        "memory-nested-0",
        "locks/reentry/gate.py",
        "if not self._shared and (self._inside is not None or",
        "if False and (True or",
    ),
    "hold_at_least of a nested block is forgotten": Mutant(
        "memory-nested-4",
        "locks/scope.py",
        "turn.hold.keep_until = max(turn.hold.keep_until, turn.since + self.keep_for)",
        "pass",
    ),
    "a nested block has what the one around it has left": Mutant(
        "memory-nested-6", "locks/reentry/entering.py", "elif hold.remaining < expire / 2:", "elif False:"
    ),
    "max_waiters does not count inside of a block": Mutant(
        "memory-nested-4",
        "locks/reentry/gate.py",
        "if max_waiters is not None and self._count_waiters() >= max_waiters:",
        "if False:",
    ),
    "of several blocks of one lock object the innermost ends": Mutant(
        "memory-nested-1",
        "locks/reentry/chain.py",
        "            and known[1] is place\n",
        "",
    ),
    "a block that wants to be alone begins inside of readers": Mutant(
        "memory-nested-8", "locks/reentry/entering.py", "            check_limit(spec.limit, hold)\n", ""
    ),
    "a hand-over forgets what nested blocks keep taken": Mutant(
        "memory-nested-379",
        "locks/handover.py",
        "        hold.keep_until = hold.since + ticket.keep\n",
        "        pass\n",
    ),
    "a hand-over forgets hold_at_least": Mutant(
        "memory-nested-4", "locks/handover.py", "        hold_at_least=ticket.hold_at_least,\n", ""
    ),
    "in a cluster a node is believed that knows no slots": Mutant(
        "cluster-0", "backends/redis/cluster/topology.py", "            if not any(owners):", "            if False:"
    ),
    "in a cluster a renewal follows a slot that moves as long as others do": Mutant(
        "cluster-leases-23",
        "backends/redis/cluster/port.py",
        "follow = None if timeout is None else now() + FOLLOW_TOGETHER",
        "follow = None",
    ),
    "in a cluster a node that refuses fails the renewals at all others": Mutant(
        "cluster-leases-7",
        "backends/redis/cluster/port.py",
        "                found[slot] = answer\n                if isinstance(answer, BackendUnavailable)",
        '                found[slot] = answer\n                if type(answer).__name__ == "ConfigurationError":\n'
        "                    raise answer\n                if isinstance(answer, BackendUnavailable)",
    ),
}
# What concerns call chains is found by those on a server, too.
for _name, _seed in {
    "a lease in hand is entered by another acquire": "redis-nested-1",
    "who outlives a nested block is not told": "redis-nested-0",
    "hold_at_least of a nested block is forgotten": "redis-nested-0",
    "a nested block has what the one around it has left": "redis-nested-1",
    "a block that wants to be alone begins inside of readers": "redis-nested-1",
}.items():
    MUTANTS[f"on Redis {_name}"] = MUTANTS[_name]._replace(seed=_seed)


def programs_of(mutant: Mutant) -> list[Program]:
    """The programs of a mutant's processes."""
    changes = {mutant.file: [(mutant.old, mutant.new)]}
    found = [Program(changes) for _ in range(SCENARIOS[mutant.scenario].processes)]
    gc.collect()
    gc.freeze()
    return found


def find(name: str, within: int = WITHIN) -> Result | None:
    """The first seed that finds this mutant."""
    mutant = MUTANTS[name]
    programs = programs_of(mutant)
    for seed in (mutant.number, *range(within)):
        result = run(SCENARIOS[mutant.scenario], seed, programs)
        if result.violations:
            return result
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--within", type=int, default=WITHIN)
    parser.add_argument("--only", choices=list(MUTANTS))
    options = parser.parse_args()
    if options.only:
        return not _tell(options.only, find(options.only, options.within))
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
        results = {name: pool.submit(find, name, options.within) for name in MUTANTS}
        return sum(not _tell(name, future.result()) for name, future in results.items())


def _tell(name: str, result: Result | None) -> bool:
    seed = f"{MUTANTS[name].scenario}-{result.seed}" if result else "none"
    print(f"{seed:14} {name}: {result.violations[0] if result else 'not found'}", flush=True)
    return result is not None


if __name__ == "__main__":
    sys.exit(main())
