"""Any store in the storm, as its author would try it; and a store that is wrong is found so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distlock_web import configure
from distlock_web.backends.memory import MemoryBackend, MemoryPort
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.config import StoreConfig
from tests.support.storm import storm


class Forgetful(MemoryPort):
    """Its leases end 0.2 s too early for everybody else."""

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        answer = await super().acquire(claim, wait)
        if isinstance(answer, Granted):
            self._table.locks[claim.name].owners[claim.token].until -= 0.2
        return answer


class ForgetfulBackend(MemoryBackend):
    def __init__(self, config: StoreConfig) -> None:
        super().__init__(config)
        self._sync_port = Forgetful(self._table, self._sync_port.runtime)
        self._async_port = Forgetful(self._table, self._async_port.runtime)


@pytest.mark.slow
@pytest.mark.timing
def test_a_good_store_stands_the_storm() -> None:
    configure({"default": {"BACKEND": "memory"}})
    assert storm(seed=1, seconds=3.0) == []


@pytest.mark.nightly
@pytest.mark.timing
@pytest.mark.parametrize("store", ["sqlite", "postgres", "mariadb", "zookeeper", "etcd"])
def test_stores_that_are_not_simulated_stand_the_storm(store: str, request: pytest.FixtureRequest) -> None:
    configure({"default": request.getfixturevalue(f"{store}_settings")})
    assert [found for seed in range(3) for found in storm(seed=seed, seconds=5.0)] == []


class LongBackend(MemoryBackend):
    """It knows no short leases."""

    capabilities = replace(MemoryBackend.capabilities, min_expire=0.8)


@pytest.mark.slow
@pytest.mark.timing
def test_a_store_without_short_leases_is_asked_for_none() -> None:
    """Its callers were refused, and so the storm was."""
    configure({"default": {"BACKEND": f"{__name__}.LongBackend"}})
    assert storm(seed=1, seconds=1.0) == []


@pytest.mark.slow
def test_a_store_whose_leases_end_too_early_is_found() -> None:
    configure({"default": {"BACKEND": f"{__name__}.ForgetfulBackend"}})
    assert any("overlap" in found for seed in range(5) for found in storm(seed=seed, seconds=3.0, locks=1))
