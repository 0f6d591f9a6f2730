"""Order without sleeping: a view stays where it is until the test has looked."""

from __future__ import annotations

import asyncio
import threading


class Gate:
    """Open at first. Closed (``opened.clear()``), it keeps a view inside its lock until ``opened.set()``."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.opened.set()

    def pass_through(self) -> None:
        self.entered.set()
        assert self.opened.wait(20), "the test never opened the gate"

    async def apass_through(self) -> None:
        self.entered.set()
        assert await asyncio.to_thread(self.opened.wait, 20), "the test never opened the gate"
