"""A process with many waiters: threads that wait for one lock. Run with its options, as JSON, in argv[1].

Each takes the lock ``rounds`` times and gives it back at once; with ``hold`` it keeps it until the process ends.
"""

from __future__ import annotations

import contextvars
import json
import sys
import threading
from typing import Any

from distlock_web import LockBusy, configure, lock
from tests.support.history import Recorder


def main(options: dict[str, Any]) -> None:
    configure({"default": {"LOCATION": options["url"]}})
    say = Recorder(options["actor"])
    waiters = [
        threading.Thread(target=contextvars.Context().run, args=(wait, say, options)) for _ in range(options["count"])
    ]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()


def wait(say: Recorder, options: dict[str, Any]) -> None:
    for _ in range(options["rounds"]):
        try:
            lease = lock(
                options["key"], expire=options["expire"], wait=options["wait"], renew=options["renew"]
            ).acquire()
        except LockBusy:
            say("gave_up")
            continue
        say("acquired", lease.fence)
        if options["hold"]:
            threading.Event().wait()
        lease.release()
        say("released", lease.fence)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
