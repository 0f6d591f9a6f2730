"""The lock itself: stdlib only, no framework, no driver."""
