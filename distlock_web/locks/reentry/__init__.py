"""A lock inside of the same lock: who is inside of what, how siblings take turns, and how one enters again."""
