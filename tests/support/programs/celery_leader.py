"""A Celery app whose worker wants to lead, in its parent process; see ``sites/leading.py``."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_ready

app = Celery("leading", broker=os.environ["DISTLOCK_URL"])


@worker_ready.connect
def take_part(**_: Any) -> None:
    from tests.support.sites import leading  # noqa: F401 - its import takes part
