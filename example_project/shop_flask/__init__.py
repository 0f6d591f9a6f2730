"""The Flask shop. It knows nothing of Django: it opens the same database and asks for the lock of the same name."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

from flask import Flask, abort

from distlock_web import current_request_id, distributed_lockable, once
from distlock_web.flask import DistLock

from ..environment import DATABASE, KEEPS_RECORDS, LOCKS_URL, PAYMENT_SECONDS


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["DISTLOCK"] = {"default": {"LOCATION": LOCKS_URL}}
    DistLock(app)
    app.add_url_rule("/buy-without-lock/<item>", view_func=buy_without_lock, methods=["POST"])
    app.add_url_rule("/buy/<item>", view_func=buy, methods=["POST"])
    if KEEPS_RECORDS:
        app.add_url_rule("/order/<item>", view_func=order, methods=["POST"])
    return app


def buy_without_lock(item: str) -> tuple[str, int]:
    return sell(item)


@distributed_lockable(key="stock:{item}", expire=10, wait=10)
def buy(item: str) -> tuple[str, int]:
    return sell(item)


@once(key="order:{request.headers[Idempotency-Key]}", keep="10m", expire=20, wait=20)
def order(item: str) -> tuple[str, int]:
    return buy(item)


def sell(item: str) -> tuple[str, int]:
    """Read the stock, take the money, write the stock: the Django shop's function once more."""
    with closing(sqlite3.connect(DATABASE, timeout=20)) as database:
        row = database.execute("SELECT remaining FROM shop_stock WHERE item = ?", [item]).fetchone()
        if row is None:
            abort(404)
        [remaining] = row
        if remaining <= 0:
            return "Sold out", 410
        time.sleep(PAYMENT_SECONDS)
        with database:  # one transaction
            database.execute("UPDATE shop_stock SET remaining = ? WHERE item = ?", [remaining - 1, item])
            database.execute(
                "INSERT INTO shop_sale (item, shop, request_id) VALUES (?, 'Flask', ?)", [item, current_request_id()]
            )
    return f"Sold. Your receipt: {current_request_id()}", 201
