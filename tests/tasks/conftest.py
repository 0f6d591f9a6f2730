from __future__ import annotations

from collections.abc import Iterator

import pytest

from distlock_web import configure
from distlock_web.testing.servers import RedisServer
from tests.support.celery_workers import POOLS, CeleryWorkers
from tests.support.programs import celery_shop as shop
from tests.support.requirements import require_redis


@pytest.fixture(scope="session")
def celery_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CeleryWorkers]:
    """Workers of Celery over a Redis of their own."""
    require_redis()
    with RedisServer() as server:
        url = server.url.rpartition("/")[0] if server.url.count("/") > 2 else server.url
        shop.use(url)
        workers = CeleryWorkers(url, tmp_path_factory.mktemp("celery"))
        yield workers
        workers.close()


@pytest.fixture
def workers(celery_workers: CeleryWorkers) -> CeleryWorkers:
    """The same; the test's own locks are where theirs are."""
    configure(shop.locks(celery_workers.url))
    return celery_workers


@pytest.fixture(params=POOLS)
def pool(request: pytest.FixtureRequest, workers: CeleryWorkers) -> str:
    """The kind of a worker that runs, and its queue."""
    workers.start(request.param)
    return str(request.param)
