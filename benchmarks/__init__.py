"""distlock_web side by side with other locks, in one run on one machine. See docs/benchmarks.md."""
