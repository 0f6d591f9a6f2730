"""A Flask app with the page "Held locks", served for a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

from distlock_web.flask import DistLock, held_locks_blueprint


class SilentHandler(WSGIRequestHandler):
    """Werkzeug writes a line for each request."""

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        """Nothing."""


@contextmanager
def flask_site(store: dict[str, Any]) -> Iterator[str]:
    """The address of an app that lets everybody see and release."""
    app = Flask("shop")
    app.config["DISTLOCK"] = {"default": store}
    DistLock(app)
    app.register_blueprint(held_locks_blueprint(lambda action: "ann"))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=SilentHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()
        app.extensions["distlock"].registry.close()
