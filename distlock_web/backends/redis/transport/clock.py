"""The server's clock, as we last heard it: so that a request can say until when it is meant."""

from __future__ import annotations

from ....core.runtime import now


class ServerClock:
    """Our guess at the server's time. It need not be right: a request that is refused for it is sent again."""

    __slots__ = ("ahead_us",)

    def __init__(self) -> None:
        self.ahead_us: int | None = None  #: of our own clock; None: it was not heard yet

    def heard(self, server_time_us: int, since: float) -> None:
        """``since``: before the question was sent. The server answered between then and now: a guess that agrees is
        kept, for an event loop may be late to read the answer, and a server that stood still late to give it.
        """
        at_least, at_most = server_time_us - int(now() * 1_000_000), server_time_us - int(since * 1_000_000)
        guess = at_least if self.ahead_us is None else self.ahead_us
        self.ahead_us = min(max(guess, at_least), at_most)

    def after(self, seconds: float) -> int | str:
        """The server's time so many seconds from now, in µs; ``""`` before it was heard at all."""
        return "" if self.ahead_us is None else self.ahead_us + int((now() + seconds) * 1_000_000)
