"""Run by test_runtimes.py: 20 greenlets contend for one lock while another one counts."""

from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402

import gevent  # noqa: E402

from distlock_web import configure, lock  # noqa: E402

counter = ticks = inside = 0


def greenlet() -> None:
    global counter, inside
    for _ in range(10):
        with lock("lab", expire=20, wait=60, renew=True):
            inside += 1
            assert inside == 1
            seen = counter
            gevent.sleep(0.002)
            counter = seen + 1
            inside -= 1


def tick() -> None:
    global ticks
    while True:
        gevent.sleep(0.001)
        ticks += 1


registry = configure({"default": {"LOCATION": sys.argv[1], "OPTIONS": {"max_connections": 4, "pool_timeout": 30}}})
ticking = gevent.spawn(tick)
gevent.joinall([gevent.spawn(greenlet) for _ in range(20)], timeout=60, raise_error=True)
ticking.kill()
assert ticks > 100, "waiting for the lock stopped the other greenlets"
registry.close()
print(counter, "sections by 20 greenlets, the others ran meanwhile")
