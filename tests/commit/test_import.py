"""Functions are locked where they are written, which may be before Django is ready."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_function_in_a_models_module_may_be_until_commit(tmp_path: Path) -> None:
    """Models are imported before any app is ready, whatever the order in INSTALLED_APPS."""
    app = tmp_path / "shop"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "models.py").write_text(
        "from distlock_web import distributed_lockable\n"
        '@distributed_lockable(key="order", until="commit")\n'
        "def pay(): return 'paid'\n"
    )
    program = """
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["shop", "distlock_web.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    DISTLOCK={"default": {"BACKEND": "memory"}},
)
import django
django.setup()
from shop.models import pay
print(pay())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "paid\n", done.stderr
