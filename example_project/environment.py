"""What both shops read from the environment, so that they meet: at the same locks, the same stock, the same pace."""

from __future__ import annotations

import os
from pathlib import Path

#: Where the locks live: the URL of any store. Both shops name the same one: that is all it takes to exclude each other.
LOCKS_URL = os.environ.get("DISTLOCK_URL", "redis://127.0.0.1:6379/0")

#: Whether that store keeps records of what is done, for `once`.
KEEPS_RECORDS = not LOCKS_URL.startswith(("redlock", "zookeeper"))

#: Where the stock lives: one SQLite file, opened by every process of both shops.
DATABASE = os.environ.get("SHOP_DATABASE", str(Path(__file__).parent / "shop.sqlite3"))

#: Seconds that a payment takes. The stock is read before it and written after it.
PAYMENT_SECONDS = float(os.environ.get("SHOP_PAYMENT_SECONDS", "0.02"))
