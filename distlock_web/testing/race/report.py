"""The order in which it went wrong, in a column for each caller, and what would mend it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .scheduler import Order, Step
from .statements import row_values

WIDEST = 72


def columns(order: Order, written: set[str], fields: set[str]) -> str:
    """The steps, without what was read of tables that nobody writes."""
    names = [caller.name for caller in order.callers]
    lines: list[tuple[int, int, str]] = []
    left_out = 0
    for number, step in enumerate(order.steps, 1):
        if step.table and not step.writes and step.table not in written and not step.note:
            left_out += 1
            continue
        lines.append((number, step.caller, cell(step, fields)))
    width = min(WIDEST, max([len(text) for _, caller, text in lines if caller < len(names) - 1], default=1)) + 2
    head = "      " + "".join(name.ljust(width) for name in names)
    rows = [f"{number:3}   {' ' * (width * caller)}{text}".rstrip() for number, caller, text in lines]
    hidden = [f"      (not shown: {left_out} reads of tables that nobody writes)"] if left_out else []
    return "\n".join([head.rstrip(), *rows, *hidden])


def cell(step: Step, fields: set[str]) -> str:
    values = row_values([name for name, _ in step.values], [value for _, value in step.values], fields)
    read = " ".join(f"{name}={value!r}"[:40] for name, value in values)
    if step.found is not None and step.found != 1:
        read = "no row" if step.found == 0 else f"{step.found} rows"
    return "  ".join(filter(None, (step.text, step.where, read, step.note)))


def cure(order: Order, written: set[str], raised: Sequence[str]) -> str:
    """What would mend it."""
    lock = 'A lock on this view: @distributed_lockable(key="…")'
    if order.trouble or any("deadlock" in text.lower() or "is locked" in text.lower() for text in raised):
        return f"{lock}, or the rows taken in one order by all."
    wrote = {step.caller for step in order.steps if step.writes}
    for step in order.steps:
        if step.table in written and not step.writes and step.caller in wrote and step.where:
            if re.search(r"\bFOR (UPDATE|NO KEY UPDATE|SHARE)\b", step.text, re.I):
                continue
            if step.found == 0:
                return f"{lock}, or a unique constraint on {step.table} (nothing was found at {step.where})."
            if step.row_lock:
                return f"{lock}, or {step.row_lock} at {step.where}."
    return f"{lock}."
