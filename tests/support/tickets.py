"""Tickets that no ``lease.detach()`` has made."""

from __future__ import annotations

import base64
import json


def forged(
    held: object = (("n", 1),),
    expire: float = 10,
    renew_for: float | None = None,
    kept: float = 0,
    keep: float = 0,
    prefix: str = "p:",
    store: str = "default",
) -> str:
    return encoded(store, held, expire, False, prefix, {"secret": "0", "times": [renew_for, kept, keep]})


def encoded(*fields: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()
