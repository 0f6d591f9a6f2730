"""An example of a store, for docs/backends.md, passes the contract. tests/simulation has it in the storm."""

from __future__ import annotations

from http.client import HTTPConnection
from typing import Any

import pytest

from distlock_web import BackendUnavailable
from distlock_web.testing.contract import StoreContract
from tests.support.stores.etcd import EtcdBackend
from tests.support.stores.etcd.server import Server
from tests.support.waiting import LONG

pytestmark = pytest.mark.slow


class TestEtcd(StoreContract):
    backend = EtcdBackend
    ttl, kept = 1.0, 1.6  # the first is the shortest that there is, and etcd takes half a second more to end it
    #: Of the cases whose leases end, which are long here. By day they run in one mode, whose tasks have threads, too.
    at_night = r"\[threads\]|renew"

    @pytest.fixture
    def settings(self, etcd_settings: dict[str, Any]) -> dict[str, Any]:
        return etcd_settings


def test_a_late_renewal_that_is_not_connected_in_its_milliseconds_makes_no_silent_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that wanted a lock were refused at once, though an answer may take seconds."""

    def not_in_time(connection: HTTPConnection) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(HTTPConnection, "connect", not_in_time)
    server = Server("127.0.0.1", 1, LONG)
    for given, silent in ((0.01, False), (LONG, True)):
        with pytest.raises(BackendUnavailable):
            server.connect(given)
        assert server.outage.silent is silent
    server.outage.close()
