"""The record of ``once`` as it is stored: in format 2, or in format 1, for processes of the version before.

In format 1 there is, beside what such a process reads, all that it does not know: nothing is lost to the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.formats import BEFORE, NEWEST, refusal
from .hooks import Asked
from .plain_values import pack, unpack

#: In place of a result that was not kept.
LOST = object()
#: What JSON has in front of a value that is packed, and nowhere else: see ``plain_values.py``.
_PACKED = '{"": '


@dataclass(frozen=True, slots=True)
class Record:
    """Who asked for what, what is kept of the answer, and the result, packed."""

    asked: Asked
    #: What :meth:`Integration.answer_of` has answered. Its "before" is what a process of the version before would keep
    #: in addition.
    kept: dict[str, Any] | None
    result: Any = LOST

    def is_for(self, asked: Asked) -> bool:
        """Whether the same is asked for again. A record of the version before has only the digest of before."""
        return self.asked.digest == asked.digest if self.asked.digest else self.asked.before == asked.before

    def answer(self) -> Any:
        return unpack(self.result)

    def dumps(self, form: int) -> str:
        kept = None if self.kept is None else {name: said for name, said in self.kept.items() if name != "before"}
        result = {} if self.result is LOST else {"result": self.result}
        if form == NEWEST:
            return json.dumps({"format": NEWEST, "asked": self.asked.digest, "kept": kept, **result})
        record: dict[str, Any] = {"asked": self.asked.before, "kept": kept, "result": None, **result}
        beside: dict[str, Any] = {"asked": self.asked.digest}
        if self.kept != kept and kept is not None and self.kept is not None:
            record["kept"] = {**kept, **self.kept["before"]}
        if not result:
            beside["is_lost"] = True
        elif _PACKED in json.dumps(self.result):
            record["result"], beside["result"] = None, self.result
        return json.dumps({**record, "beside": beside})

    @staticmethod
    def with_kept(text: str, kept: Mapping[str, Any]) -> str:
        """A stored record, in either format, that keeps this of the answer: it is known only when that is sent."""
        return json.dumps({**json.loads(text), "kept": kept})

    @classmethod
    def loads(cls, text: str, name: str) -> Record:
        """Raises ``ConfigurationError`` for one of a newer format, of the lock ``name``."""
        found = json.loads(text)
        form = found.get("format", BEFORE)
        if form == NEWEST:
            return cls(Asked(found["asked"], ""), found["kept"], found.get("result", LOST))
        if form != BEFORE:
            raise refusal(f"What is done under the key {name!r}", form)
        beside = found.get("beside")
        if beside is None:  # the version before has written it, and result is plain
            return cls(Asked("", found["asked"]), found["kept"], pack(found["result"]))
        result = LOST if "is_lost" in beside else beside.get("result", found["result"])
        return cls(Asked(beside["asked"], found["asked"]), found["kept"], result)
