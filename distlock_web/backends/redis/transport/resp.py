"""The wire format (RESP 2), as far as we write it ourselves: commands that are packed once and sent often."""

from __future__ import annotations


def bulk(value: str | bytes | int) -> bytes:
    """One argument as Redis reads it (a bulk string)."""
    data = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def command(*words: str | bytes | int) -> bytes:
    """A whole command."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))


#: In a cluster, in front of a question for a slot that is on its way to the node that is asked.
ASKING = command("ASKING")
