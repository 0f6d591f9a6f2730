"""A property takes as long as a busy machine lets it: hypothesis would fail one example of more than 0.2 s."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unhurried", settings(deadline=None))
settings.load_profile("unhurried")
