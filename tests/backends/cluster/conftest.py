"""Fixtures for what is about a Redis Cluster alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from distlock_web import configure
from tests.support.lab import Lab
from tests.support.stores.cluster import Cluster


@pytest.fixture
def cluster_store(cluster: Cluster) -> Cluster:
    """The default store is the session's cluster, empty; the test may do to its nodes what it likes."""
    configure({"default": {"LOCATION": cluster.url}})
    return cluster


@pytest.fixture
def cluster_lab(cluster: Cluster, tmp_path: Path) -> Iterator[Lab]:
    """Worker processes over the session's cluster."""
    made = Lab(cluster.url, tmp_path)
    yield made
    made.close()
