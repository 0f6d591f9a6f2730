"""``python -m distlock_web``: the same as ``distlock``."""

from .cli.main import console

if __name__ == "__main__":
    console("python -m distlock_web")
