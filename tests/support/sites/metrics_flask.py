"""A Flask app whose locks are counted, as two workers of a gunicorn serve it. Runs with PROMETHEUS_MULTIPROC_DIR."""

from __future__ import annotations

import os

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from distlock_web import distributed_lockable, events
from distlock_web.flask import DistLock
from distlock_web.prometheus import install

app = Flask(__name__)
app.config["DISTLOCK"] = {"default": {"BACKEND": "redis", "LOCATION": os.environ["METRICS_REDIS"]}}
DistLock(app)
install()


@app.get("/pay/<int:order>")
@distributed_lockable(key="order:{order}", expire=30)
def pay(order: int) -> str:
    return str(os.getpid())


@app.get("/metrics")
def metrics() -> Response:
    events.flush()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
