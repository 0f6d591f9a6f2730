"""What the server can be asked about itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import redis


@dataclass(frozen=True)
class Counters:
    """By command. The time of a script has that of what it calls, which is counted for those commands again."""

    calls: Counter[str]
    microseconds: Counter[str]


#: The probe's own commands, which are never counted.
OWN = {"client", "config", "dbsize", "echo", "flushall", "hello", "info", "memory", "monitor", "pttl", "scan"}


class Probe:
    """Our own client: it empties the server, and counts what the contenders ask of it."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def requests(self) -> int:
        """How often the server has read from a client: a request, or a pipeline, of up to 16 KB.

        Not the sum of commandstats, which also count what scripts call.
        """
        self._asked += 1
        return int(self._client.info("stats")["total_reads_processed"]) - self._asked

    def scripts(self) -> int:
        """How many scripts the server has run; no script calls another."""
        self._asked += 1
        stats = self._client.info("commandstats")
        return sum(stats.get(name, {"calls": 0})["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval"))

    def sent_during(self, work: Callable[[], object]) -> set[str]:
        """Which commands clients send, scripts not counted, while this is done."""
        sent = set()
        with self._client.monitor() as monitor:  # type: ignore[no-untyped-call]
            work()
            self._client.echo("over")
            while (seen := monitor.next_command())["command"] != "ECHO over":
                if seen["client_type"] != "lua":
                    sent.add(seen["command"].split()[0].lower())
        return sent - OWN

    def longest_of(self, work: Callable[[], object]) -> float:
        """Seconds of the longest request to the server while this is done."""
        self._client.config_set("slowlog-log-slower-than", 0)
        self._client.slowlog_reset()
        work()
        seen = self._client.slowlog_get(128)
        self._client.config_set("slowlog-log-slower-than", -1)
        return max(entry["duration"] for entry in seen if not entry["command"].startswith(b"SLOWLOG")) / 1e6

    def stats(self) -> Counters:
        """What was called since the server's start, also by scripts, but not our own commands."""
        self._asked += 1
        found = self._client.info("commandstats")
        by_name = {name.removeprefix("cmdstat_"): of_one for name, of_one in found.items()}
        foreign = {name: of_one for name, of_one in by_name.items() if name.partition("|")[0] not in OWN}
        return Counters(
            calls=Counter({name: of_one["calls"] for name, of_one in foreign.items()}),
            microseconds=Counter({name: of_one["usec"] for name, of_one in foreign.items()}),
        )

    def cpu(self) -> float:
        """Seconds of CPU that the server has used, for itself and in the kernel."""
        found = self._client.info("cpu")
        return found["used_cpu_user"] + found["used_cpu_sys"]

    def names(self) -> set[str]:
        """Every key there is."""
        return {name.decode() for name in self._client.scan_iter(count=10_000)}

    def memory(self) -> int:
        """Bytes that all keys and their values take, by the server's own account.

        Not its memory as a whole, which also grows and shrinks with its connections' buffers.
        """
        with self._client.pipeline(transaction=False) as pipeline:
            for name in self.names():
                pipeline.memory_usage(name, samples=0)
            return sum(size or 0 for size in pipeline.execute())  # None: it has expired meanwhile

    def clients_memory(self) -> int:
        """Bytes that the server's connections take."""
        return int(self._client.info("memory")["mem_clients_normal"])

    def connections(self) -> int:
        """Those of everybody but us."""
        return int(self._client.info("clients")["connected_clients"]) - 1

    def prolong(self, key: str, seconds: float) -> None:
        """Let the lock of this key live so long from now on, under whatever prefix."""
        for name in self.names():
            if name.endswith(key):
                self._client.pexpire(name, round(seconds * 1000))

    def flush(self) -> None:
        self._client.flushall()

    def close(self) -> None:
        self._client.close()
