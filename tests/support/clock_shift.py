"""A server whose clock a test moves: ``gettimeofday`` and its like come from a library that adds an offset."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from distlock_web.testing.servers import OwnServer, RedisServer
from tests.support.requirements import compiler_program, require
from tests.support.zookeeper_server import ZooKeeperServer

SOURCE = Path(__file__).with_name("clock_shift.c")


def compiled_shim(stack: ExitStack) -> Path:
    """The library, compiled into a folder that goes with ``stack``. Skips where there is no C compiler."""
    require("compiler", compiler_program)
    library = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "clock_shift.so"
    subprocess.run([compiler_program(), "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class Shifted(OwnServer):
    """A server whose clock runs with everybody's until ``shift`` moves it."""

    stands = False  #: its clock stands where ``shift`` has put it, counted from the epoch

    def __init__(self, library: Path) -> None:
        super().__init__()
        self._library = library
        self._offset = library.with_name("offset")
        self.shift(0.0)

    def command(self, port: int) -> list[str]:
        environment = [f"LD_PRELOAD={self._library}", f"CLOCK_OFFSET_FILE={self._offset}"]
        environment += ["CLOCK_STANDS=1"] if self.stands else []
        return ["/usr/bin/env", *environment, *super().command(port)]

    def shift(self, seconds: float) -> None:
        """From now on its clock is so many seconds ahead of ours."""
        self._offset.touch()
        with open(self._offset, "r+b") as file:
            file.write(struct.pack("q", round(seconds * 1_000_000)))


class ShiftedRedis(Shifted, RedisServer):
    """A Redis, of no arguments of its own."""


class ShiftedZooKeeper(Shifted, ZooKeeperServer):
    """A ZooKeeper, which leads itself."""
