"""The drill: more buyers than there is to sell, all at once, over HTTP, half of them in each shop.

Some are impatient: they click several times, and do not wait for an answer in between.
"""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import cycle, islice
from urllib.parse import urlsplit

BUYERS = 60
DELIVERED = 20

SOLD, BUSY, SOLD_OUT = 201, 409, 410


@dataclass(frozen=True, slots=True)
class Answer:
    """What one buyer was told."""

    shop: str
    status: int  #: 0: no answer at all, or another one for each click
    seconds: float
    repeated: int = 0  #: clicks that were answered with the answer to an earlier one


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a drill has left behind: the shop's books, and what the buyers were told."""

    delivered: int
    sold: int
    remaining: int
    answers: Sequence[Answer]

    @property
    def oversold(self) -> int:
        """How many have paid and will get nothing."""
        return max(0, self.sold - self.delivered)

    @property
    def busy(self) -> int:
        return self.count(BUSY)

    @property
    def failed(self) -> int:
        """Answers that no buyer should get."""
        return len(self.answers) - self.count(SOLD, BUSY, SOLD_OUT)

    @property
    def repeated(self) -> int:
        """Clicks that were answered with the answer to an earlier one."""
        return sum(answer.repeated for answer in self.answers)

    @property
    def exact(self) -> bool:
        """Every item was sold once, the books are right, and every buyer got a proper answer."""
        return self.sold == self.delivered == self.count(SOLD) and self.remaining == 0 and self.failed == 0

    def count(self, *statuses: int) -> int:
        return sum(answer.status in statuses for answer in self.answers)

    def percentile(self, percent: int) -> float:
        """The seconds within which so many percent of the buyers had their answer."""
        return statistics.quantiles((answer.seconds for answer in self.answers), n=100, method="inclusive")[percent - 1]


def rush(
    shops: Mapping[str, str], item: str, *, locked: bool, clicks: int = 1, buyers: int = BUYERS
) -> Iterator[Answer]:
    """Let the buyers in, all at once, and give their answers as they come. ``shops``: name → URL."""
    path = f"/buy-without-lock/{item}" if not locked else f"/buy/{item}" if clicks == 1 else f"/order/{item}"
    start_line = threading.Barrier(buyers, timeout=30)
    with ThreadPoolExecutor(buyers) as crowd:
        purchases = [
            crowd.submit(_buy, shop, shops[shop] + path, clicks, start_line) for shop in islice(cycle(shops), buyers)
        ]
        for purchase in as_completed(purchases):
            yield purchase.result()


def _buy(shop: str, url: str, clicks: int, start_line: threading.Barrier) -> Answer:
    address, key = urlsplit(url), secrets.token_hex(8)
    connections = [HTTPConnection(address.netloc, timeout=30) for _ in range(clicks)]
    start_line.wait()
    start = time.perf_counter()
    answers, repeated = set(), 0
    try:
        for connection in connections:
            connection.request("POST", address.path, headers={"Idempotency-Key": key})
        for connection in connections:
            response = connection.getresponse()
            answers.add((response.status, response.read()))
            repeated += response.headers.get("Idempotency-Replayed") == "true"
    except (OSError, HTTPException):
        answers.clear()
    finally:
        for connection in connections:
            connection.close()
    status = answers.pop()[0] if len(answers) == 1 else 0
    return Answer(shop, status, time.perf_counter() - start, repeated)
