"""A property takes as long as a busy machine lets it: Hypothesis fails one example of 0.2 s, and slow data."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("unhurried")
