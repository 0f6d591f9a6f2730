"""What a server was sent, and what it then executed: to be read, and frozen in a file beside the test.

It changes only with a reason: ``DISTLOCK_FREEZE=1 pytest <the test>`` writes the file anew.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import redis

from distlock_web.backends.redis.scripts.calls import Script

#: What the test asks for itself, and what a client says that connects.
NOT_OURS = {"SCAN", "ZCARD", "HELLO", "CLIENT"}


class Transcript:
    """What the server was sent over all connections, a line for each command; beneath a script what that called.

    ``scripts``: the package whose scripts are called by their names. ``housekeeping``: so many commands that look after
    the index are left out. They begin with ``ZREMRANGEBYSCORE``, in one acquisition of sixty-four. One in eight that
    comes behind others looks for the dead in the queue: ``ZRANDMEMBER`` is left out, too.
    """

    def __init__(self, client: redis.Redis, scripts: ModuleType, *, housekeeping: int) -> None:
        self.text = ""
        self._housekeeping = housekeeping
        self._client = client
        self._scripts = {
            hashlib.sha1(script.source, usedforsecurity=False).hexdigest(): name.lower()
            for name, script in vars(scripts).items()
            if isinstance(script, Script)
        }

    @asynccontextmanager
    async def of(self, cycle: str) -> AsyncIterator[None]:
        with self._client.monitor() as monitor:  # type: ignore[no-untyped-call]
            yield
            self._client.echo("the end")
            lines: list[str] = []
            while (said := monitor.next_command())["command"] != "ECHO the end":
                verb, first, *_ = f"{said['command']} ".split(" ")
                if verb == "ZRANDMEMBER" and first.endswith(":queue"):
                    continue
                if said["client_type"] == "lua":
                    lines.append(f"        {verb} {re.sub('[0-9a-f]{16}', '<store>', first)}".rstrip())
                elif verb not in NOT_OURS:
                    lines.append(f"    {verb} {self._scripts.get(first, first)}")
        while found := next((at for at, line in enumerate(lines) if "ZREMRANGEBYSCORE" in line), 0):
            del lines[found : found + self._housekeeping]
        self.text += "\n".join([f"{cycle}:", *lines, "", ""])

    def is_frozen_in(self, file: Path) -> bool:
        if os.environ.get("DISTLOCK_FREEZE"):
            file.write_text(self.text)
        return self.text == file.read_text()
