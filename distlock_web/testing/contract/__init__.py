"""The contract that every store passes: each case written once, run with threads and with asyncio.

A store's test file is only configuration::

    class TestRedis(StoreContract):
        @pytest.fixture
        def settings(self, redis_url):
            return {"BACKEND": "redis", "LOCATION": redis_url}

The fixture gives one entry of a ``DISTLOCK`` mapping, for a store that holds nothing yet. Run the tests with
pytest-timeout: a broken wait is a test that does not end.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("exclusion", "leases", "queueing", "records", "sharing", "verbs"))
)

from ..harness import Harness  # noqa: E402
from .exclusion import ExclusionCases  # noqa: E402
from .leases import LeaseCases  # noqa: E402
from .queueing import QueueCases  # noqa: E402
from .records import RecordCases  # noqa: E402
from .sharing import SharingCases  # noqa: E402
from .verbs import VerbCases  # noqa: E402


class StoreContract(ExclusionCases, VerbCases, LeaseCases, QueueCases, RecordCases, SharingCases):
    """All cases. Subclass it, name the subclass ``Test…`` and give the fixture ``settings``."""


__all__ = ["Harness", "StoreContract"]
