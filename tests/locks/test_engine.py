"""What the engine does with any store: on Redis, and on one in memory in a world whose time takes none.

What a store does is in the contract (``distlock_web.testing.contract``), which every store passes.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.register_assert_rewrite(
    *(
        f"tests.support.engine.{part}"
        for part in ("leases", "loss", "nesting", "reentry", "renewal", "taking", "transfer")
    )
)

from tests.support.engine.leases import LeaseCases  # noqa: E402
from tests.support.engine.loss import LossCases  # noqa: E402
from tests.support.engine.nesting import NestingCases  # noqa: E402
from tests.support.engine.reentry import ReentryCases  # noqa: E402
from tests.support.engine.renewal import RenewalCases  # noqa: E402
from tests.support.engine.taking import TakingCases  # noqa: E402
from tests.support.engine.transfer import TransferCases  # noqa: E402
from tests.support.in_world import copies  # noqa: E402

CASES = (LeaseCases, LossCases, NestingCases, ReentryCases, TakingCases, TransferCases)


class TestOnRedis(*CASES):  # type: ignore[misc]
    @pytest.fixture
    def settings(self, redis_url: str) -> dict[str, Any]:
        patient = {"socket_timeout": 10, "socket_connect_timeout": 10}  # none of the cases is about time-outs
        return {"BACKEND": "redis", "LOCATION": redis_url, "OPTIONS": patient}


class TestInMemory(copies(*CASES, RenewalCases)):  # type: ignore[misc]
    """The same, and when leases are renewed: there alone it is known to the tenth of a second."""
