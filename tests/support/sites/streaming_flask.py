"""A Flask app that streams under its locks, as it is served. See ``django_site`` for how it tells what it has seen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

from flask import Flask, Response, request, send_file, stream_with_context

from distlock_web import distributed_lockable
from distlock_web.flask import DistLock
from tests.support.sites.streamed import CHUNK, KEY, chunks

app = Flask(__name__)
app.config["DISTLOCK"] = {"default": {"BACKEND": "redis", "LOCATION": os.environ["STREAMING_REDIS"]}}
DistLock(app)


def generator() -> Any:
    return chunks(int(request.args["chunks"]))


def in_tuple() -> Any:
    return generator(), 200, {"X-Export": "yes"}


def response_in_tuple() -> Any:
    return Response(generator()), 200


def with_context() -> Any:
    def body() -> Iterator[bytes]:
        yield from chunks(int(request.args["chunks"]))

    return Response(stream_with_context(body()))


async def from_coroutine() -> Any:
    return Response(generator())


def file() -> Any:
    content = tempfile.TemporaryFile()  # noqa: SIM115 - the response closes it
    content.truncate(int(request.args["chunks"]) * len(CHUNK))
    content.seek(0)
    return send_file(content, mimetype="application/octet-stream")


for view in (generator, in_tuple, response_in_tuple, with_context, from_coroutine, file):
    for name, expire in (("long", 60), ("short", 1)):
        locked = distributed_lockable(key=KEY, expire=expire)(view)
        app.add_url_rule(f"/{name}/{view.__name__}/", f"{name}-{view.__name__}", locked)
