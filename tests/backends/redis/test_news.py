"""Which news of a hand-over is believed: the waiter alone, without a server."""

from __future__ import annotations

import pytest

from distlock_web.backends.redis.transport.subscription import Grant
from distlock_web.backends.redis.transport.waiter import ReceivedGrant, Waiter
from distlock_web.core.backend import Claim
from distlock_web.core.runtime import THREADS, Token, now

ASKED = 1_700_000_000_000_000  #: the server's clock at our last question


def waiter_that_asked(seconds_ago: float, expire: float = 10.0) -> Waiter:
    waiter = Waiter(Claim("lock", Token("token"), expire), THREADS, connection=7)
    waiter.sent_at, waiter.server_time_us = now() - seconds_ago, ASKED
    return waiter


def granted(after: float, connection: int = 7, empty_poll: float | None = None) -> ReceivedGrant:
    """The lock was handed over so many seconds after the question, by the server's clock."""
    return ReceivedGrant(Grant(42, ASKED + round(after * 1e6)), connection, now() if empty_poll is None else empty_poll)


@pytest.mark.parametrize(
    ("news", "counted"),
    [
        pytest.param({"after": 1.0}, 1.01, id="from the hand-over, on the safe side"),
        pytest.param({"after": 1.0, "connection": 8}, None, id="over another connection: perhaps of another server"),
        pytest.param({"after": 1.5, "empty_poll": 1.9}, 1.9, id="the server's clock was set forward in between"),
        pytest.param({"after": -0.001}, None, id="from before our question"),
        pytest.param({"after": 0.1, "empty_poll": 1.8, "expire": 3.0}, None, id="it comes late"),
    ],
)
def test_which_news_is_believed_and_from_when_it_counts(news: dict[str, float], counted: float | None) -> None:
    """``counted``: seconds ago, of a question that was asked two seconds ago."""
    waiter = waiter_that_asked(2.0, news.get("expire", 10.0))
    looked = now() - news.get("empty_poll", 0.0)
    waiter.news = granted(news["after"], int(news.get("connection", 7)), looked)
    found = waiter.granted_since()
    if counted is None:
        assert found is None
    else:
        assert found == (42, pytest.approx(now() - counted, abs=0.2))
    assert waiter.granted_since() is None, "it is told once"


def test_without_a_question_of_ours_no_news_counts() -> None:
    waiter = waiter_that_asked(2.0)
    waiter.sent_at = None
    waiter.news = granted(after=1.0)
    assert waiter.granted_since() is None
