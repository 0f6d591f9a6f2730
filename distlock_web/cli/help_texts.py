"""What ``--help`` says. ``{program}`` is what one types in front of the command."""

from __future__ import annotations

GROUP = "List held locks, release one by force, check settings, and run a command under a lock."

STORES = {
    "url": "the store, such as redis://127.0.0.1:6379/0 (else --config, else the environment's DISTLOCK_URL)",
    "config": "the DISTLOCK mapping in a module of Python, such as shop.settings:DISTLOCK",
}

SUMMARIES = {
    "list": "show the locks that are held now",
    "show": "show one lock: its holder, its fence, who waits for it",
    "release": "take a lock from its holder, and give it to the next in the queue",
    "doctor": "look for settings that will cause trouble",
    "run": "run a command under a lock",
    "once": "show what was done once, or let it run again",
    "init": "make what a store needs, such as tables",
    "redlock": "change which servers of a Redlock store vote",
}

DESCRIPTIONS = {
    "list": """\
Show the locks that are held now, the oldest first, in all stores.

WORDS are searched in a lock's name and in its holder's data: request id, path,
function, user, program, host. The `request` that --json shows finds all locks
of one request. LEFT is the time until the lock ends, unless its holder renews
it. WAITERS is the number of callers that wait. If a store does not answer, the
others are shown.

  {program} list
  {program} list --search "order worker-2"
  {program} list --json | jq '.[].name'""",
    "show": """\
Show one lock: its holder, since when, the rest of its lease, its fence, and
its waiters in queue order.

  {program} show order:42""",
    "release": """\
Take the lock NAME from its holder, and give it to the next in the queue.

NAME is as `list` shows it, or without the store's prefix. This does not stop
the holder: it learns of the loss at its next renewal or release, and may write
until then. So check first whether the holder is alive (HOST:PID). The lock of
a dead holder ends by itself, after the time LEFT.

At a terminal the command shows the holder and asks, unless --yes is given.
Without a terminal --yes is required.

  {program} release order:42
  {program} release order:42 --fence 1763622000000001 --yes""",
    "doctor": """\
Look at the stores, their servers and the project for settings that will cause
trouble. Each finding has a code, and says what is wrong, why and what to set.
The documentation has a page on every code. It takes and releases one lock in
each store, and changes nothing else.

  {program} doctor
  {program} doctor --fail-level warning     # for a pipeline
  {program} doctor --json | jq '.[].code'""",
    "run": """\
Run a command while holding a lock, so that one runs at a time on all machines,
as flock does on one machine.

  {program} run --key nightly --expire 60 -- ./backup.sh --all
  {program} run --key nightly --no-wait -- ./backup.sh   # or leave it
  {program} run --key nightly --wait 30 -E 0 -- ./backup.sh

It waits for the lock, for ever unless --wait or --no-wait is given. It renews
the lock while the command runs, and releases it when the command has ended.
--expire is how long the lock stays taken if this machine goes down. TIME is a
number of seconds, or text such as 90s, 1h30m, 500ms.

If the lock is lost (released by force, or the store did not answer until the
lease ended), the command's process group is ended: SIGTERM, and SIGKILL for
processes that are left after --kill-after. With --on-lost warn the command
continues. Processes that the command leaves in its group are ended before the
lock is released. On Linux a kill -9 of this process kills the command, but not
the processes that the command has started.

The command gets this process's input and output, and in its environment
DISTLOCK_KEY, DISTLOCK_NAME (the name in the store) and DISTLOCK_FENCE, a number
that grows with every holder: data can use it to refuse a late write.
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on. With a
controlling terminal the command shares it: the terminal sends Ctrl-C to both,
and after a loss only the command itself is ended, not what it has started.

With --once TIME, a command that has succeeded (status 0) does not run again for
TIME, counted from its start, on any machine: the next one prints a line and
exits 0. After a failure it runs again. Another command under the same key, or
the same one with other arguments, is not run: exit status 64. For cron on every
host:

  {program} run --key nightly --once 20h --no-wait -E 0 -- ./backup.sh""",
    "once": """\
Show what was done once (`run --once`, @once) and does not run again for its
time, the newest first, in all stores. Or forget one, so that it may run again.

  {program} once list
  {program} once list --search report
  {program} once list --json | jq '.[].name'
  {program} once forget nightly""",
    "init": """\
Make what a store needs before its first lock, such as the tables of an SQL
store. Existing tables stay as they are.

  {program} init""",
    "redlock": """\
Use the list of nodes in the settings, in place of the list that the nodes
store. Change the settings of every process to the same list. At most half of
the nodes may be new.

From then on the old list is refused. No lock can be taken until restart_delay
is over; every lock of the old list has ended by then. If a node does not
answer, run the command again at once.

  {program} redlock adopt""",
}
