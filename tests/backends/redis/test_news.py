"""Which news of a hand-over is believed: the waiter alone, without a server."""

from __future__ import annotations

import pytest

from distlock_web.backends.redis.transport.subscription import Grant
from distlock_web.backends.redis.transport.waiter import ReceivedGrant, Waiter
from distlock_web.core.backend import Claim
from distlock_web.core.runtime import THREADS, now

ASKED = 1_700_000_000_000_000  #: the server's clock at our last question


def waiter_that_asked(seconds_ago: float, expire: float = 10.0) -> Waiter:
    waiter = Waiter(Claim("lock", "token", expire), THREADS, connection=7)
    waiter.sent_at, waiter.server_time_us = now() - seconds_ago, ASKED
    return waiter


def granted(after: float, connection: int = 7, empty_poll: float | None = None) -> ReceivedGrant:
    """The lock was handed over so many seconds after the question, by the server's clock."""
    return ReceivedGrant(Grant(42, ASKED + round(after * 1e6)), connection, now() if empty_poll is None else empty_poll)


def test_news_is_counted_from_the_hand_over_on_the_safe_side() -> None:
    waiter = waiter_that_asked(2.0)
    waiter.news = granted(after=1.0)
    assert waiter.sent_at is not None
    assert waiter.granted_since() == (42, pytest.approx(waiter.sent_at + 0.99))
    assert waiter.granted_since() is None, "it is told once"


def test_news_that_came_over_another_connection_than_the_one_on_which_we_asked_is_not_believed() -> None:
    """Since then the address may lead to another server, whose clock and whose holders are others."""
    waiter = waiter_that_asked(2.0)
    waiter.news = granted(after=1.0, connection=8)
    assert waiter.granted_since() is None


def test_a_hand_over_is_not_later_than_the_last_look_that_found_nothing() -> None:
    """A server's clock that was set forward in between would make the lease longer than the server's."""
    waiter = waiter_that_asked(2.0)
    poll = now() - 1.9
    waiter.news = granted(after=1.5, empty_poll=poll)
    assert waiter.granted_since() == (42, poll)


def test_a_hand_over_from_before_our_question_is_not_believed() -> None:
    waiter = waiter_that_asked(2.0)
    waiter.news = granted(after=-0.001)
    assert waiter.granted_since() is None


def test_a_hand_over_that_comes_late_is_asked_for() -> None:
    waiter = waiter_that_asked(2.0, expire=3.0)
    waiter.news = granted(after=0.1, empty_poll=now() - 1.8)
    assert waiter.granted_since() is None


def test_without_a_question_of_ours_no_news_counts() -> None:
    waiter = waiter_that_asked(2.0)
    waiter.sent_at = None
    waiter.news = granted(after=1.0)
    assert waiter.granted_since() is None
