"""The server's clock, as we last heard it: so that a request can say until when it is meant."""

from __future__ import annotations

from ....core.runtime import now


class ServerClock:
    """Our guess at the server's time. It need not be right: a request that is refused for it is sent again."""

    __slots__ = ("_heard",)

    def __init__(self) -> None:
        self._heard: tuple[int, float] | None = None

    def heard(self, server_time_us: int) -> None:
        self._heard = server_time_us, now()

    def after(self, seconds: float) -> int | str:
        """The server's time so many seconds from now, in µs; ``""`` before it was heard at all."""
        if self._heard is None:
            return ""
        server_time_us, then = self._heard
        return server_time_us + int((now() - then + seconds) * 1_000_000)
