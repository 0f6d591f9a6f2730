"""An example of a store, for docs/backends.md, passes the contract. tests/simulation has it in the storm."""

from __future__ import annotations

from typing import Any

import pytest

from distlock_web.testing.contract import StoreContract
from tests.support.stores.etcd import EtcdBackend

pytestmark = pytest.mark.slow


class TestEtcd(StoreContract):
    backend = EtcdBackend
    ttl, kept = 1.0, 1.6  # the first is the shortest that there is, and etcd takes half a second more to end it
    #: Of the cases whose leases end, which are long here. By day they run in one mode, whose tasks have threads, too.
    at_night = r"\[threads\]|renew"

    @pytest.fixture
    def settings(self, etcd_settings: dict[str, Any]) -> dict[str, Any]:
        return etcd_settings
