"""What ``--help`` says. ``{program}`` is what one types in front of the command."""

from __future__ import annotations

GROUP = "See which locks are held, take one away, find what is set up badly, and run a command under a lock."

STORES = {
    "url": "the store, such as redis://127.0.0.1:6379/0 (else --config, else the environment's DISTLOCK_URL)",
    "config": "the DISTLOCK mapping in a module of Python, such as shop.settings:DISTLOCK",
}

SUMMARIES = {
    "list": "show the locks that are held now",
    "show": "show one lock: its holder, its fence, who waits for it",
    "release": "take a lock from its holder, and give it to the next in the queue",
    "doctor": "look for settings that will hurt",
    "run": "run a command under a lock",
    "once": "show what is done once, or let it run again",
    "init": "make what a store needs, such as tables",
    "redlock": "change which servers of a Redlock store vote",
}

DESCRIPTIONS = {
    "list": """\
Show the locks that are held now, the oldest first, in all stores.

WORDS are looked for in a lock's name and in all that is known of its holder:
request id, path, function, user, program, host. With the `request` that --json
shows they find all locks of one request. LEFT is the time until the lock ends unless its
holder renews it; WAITERS is how many wait for it. If a store does not answer, the
others are shown.

  {program} list
  {program} list --search "order worker-2"
  {program} list --json | jq '.[].name'""",
    "show": """\
Show one lock: who holds it since when, how much is left of its lease, its
fence, and those who wait for it, the first in the queue in front.

  {program} show order:42""",
    "release": """\
Take the lock NAME from its holder, and give it to the next in the queue.

NAME is as `list` shows it, or without the store's prefix. The holder is not
stopped: it learns that it lost the lock at its next renewal or release, and
may go on writing until then. So look first whether it is alive (HOST:PID); a
lock whose holder is dead ends by itself, after the time LEFT.

At a terminal it shows the holder and asks, unless --yes is given. Without a
terminal --yes is required.

  {program} release order:42
  {program} release order:42 --fence 1763622000000001 --yes""",
    "doctor": """\
Look at the stores, their servers and the project for settings that will
hurt: each finding with a code, what is wrong, why it hurts and what to set.
The documentation has a page on every code. It takes and releases one lock in
each store, and changes nothing else.

  {program} doctor
  {program} doctor --fail-level warning     # for a pipeline
  {program} doctor --json | jq '.[].code'""",
    "run": """\
Run a command while holding a lock, so that one of its kind runs at a time on
all machines, as flock does it on one.

  {program} run --key nightly --expire 60 -- ./backup.sh --all
  {program} run --key nightly --no-wait -- ./backup.sh   # or leave it
  {program} run --key nightly --wait 30 -E 0 -- ./backup.sh

It waits for the lock, for ever unless --wait or --no-wait is given; renews it
while the command runs; and releases it when the command has ended. --expire
is how long the lock stays taken if this machine goes down meanwhile. TIME is
a number of seconds, or text such as 90s, 1h30m, 500ms.

If the lock is lost (released by force, or the store did not answer for so
long that it ran out), the command's process group is ended: SIGTERM, and
SIGKILL to whatever is left after --kill-after. --on-lost warn lets it go on.
What the command leaves behind in its group is ended when it has ended, before
the lock is released. On Linux a kill -9 of this process kills the command,
but not the processes that the command has started.

The command has our input and output, and in its environment DISTLOCK_KEY,
DISTLOCK_NAME (the name in the store) and DISTLOCK_FENCE, a number that grows
with every holder: what the command writes to can refuse a late one by it.
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on. Ctrl-Z
does nothing.

With --once TIME a command that has succeeded (status 0) is not run again for
TIME, counted from its beginning, on any machine: the next one says so in a
line, and exits 0. After a failure it runs again. Meant for cron on every host:

  {program} run --key nightly --once 20h --no-wait -E 0 -- ./backup.sh""",
    "once": """\
Show what is done once (`run --once`, @once) and is not run again for its
time: the newest first, in all stores. Or forget one: then it may run again.

  {program} once list
  {program} once list --json | jq '.[].name'
  {program} once forget nightly""",
    "init": """\
Make what a store needs before its first lock, such as the tables of an SQL
store. What is there already stays as it is.

  {program} init""",
    "redlock": """\
Make the list of nodes in the settings count, in place of the one that the
nodes store. Change the settings of every process to the same list; at most
half of the nodes may be new.

From then on the old list is refused. No lock is given until restart_delay is
over, so every lock of the old list has ended by then. If a node does not
answer, run it again, at once.

  {program} redlock adopt""",
}
