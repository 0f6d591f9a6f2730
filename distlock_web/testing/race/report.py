"""The order in which it went wrong, in a column for each caller, and what would mend it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from .scheduler import Order, Step
from .statements import cut, row_values

#: Of a statement, where there are two columns, and where there are more.
WIDEST, NARROW = 60, 40


def columns(order: Order, written: set[str], fields: set[str]) -> str:
    """The steps, without what was read of tables that no caller writes."""
    names = [caller.name for caller in order.callers]
    lines: list[tuple[int, int, str]] = []
    left_out = 0
    for number, step in enumerate(order.steps, 1):
        if step.table and not step.writes and step.table not in written and not step.note:
            left_out += 1
            continue
        lines.append((number, step.caller, cell(step, fields, WIDEST if len(names) == 2 else NARROW)))
    width = max([len(text) for _, caller, text in lines if caller < len(names) - 1], default=1) + 2
    head = "      " + "".join(name.ljust(width) for name in names)
    rows = [f"{number:3}   {' ' * (width * caller)}{text}".rstrip() for number, caller, text in lines]
    hidden = [f"      (not shown: {left_out} reads of tables that nobody writes)"] if left_out else []
    return "\n".join([head.rstrip(), *rows, *hidden])


def cell(step: Step, fields: set[str], width: int) -> str:
    values = row_values([name for name, _ in step.values], [value for _, value in step.values], fields)
    read = " ".join(f"{name.strip('_')}={value!r}"[:40] for name, value in values)
    if step.found is not None and step.found != 1:
        read = "no row" if step.found == 0 else f"{step.found} rows"
    return "  ".join(filter(None, (cut(step.text, width), step.where, read, step.note)))


def cure(order: Order, raised: Sequence[str]) -> str:
    """What would mend it."""
    lock = 'A lock on this view: @distributed_lockable(key="…")'
    if order.trouble or any("deadlock" in text.lower() or "is locked" in text.lower() for text in raised):
        return f"{lock}, or the rows taken in one order by all."
    if any("IntegrityError" in text for text in raised):
        return f"{lock}; or insert first, and catch the IntegrityError, as get_or_create() does."
    updated = tables_of_several(order, "UPDATE", "DELETE")
    for step in reads(order, updated):
        if step.found and step.row_lock:
            return f"{lock}, or {step.row_lock} at {step.where}."
    if any(step.found for step in reads(order, updated)):  # SQLite has no row locks
        return f"{lock}."
    for step in reads(order, tables_of_several(order, "INSERT") - updated):
        if step.found == 0:
            return f"{lock}, or a unique constraint on {step.table} (nothing was found at {step.where})."
    return f"{lock}."


def tables_of_several(order: Order, *verbs: str) -> set[str]:
    """The tables that more than one caller writes so."""
    writers: dict[str, set[int]] = {}
    for step in order.steps:
        if step.writes and step.text.startswith(verbs):
            writers.setdefault(step.table, set()).add(step.caller)
    return {table for table, callers in writers.items() if len(callers) > 1}


def reads(order: Order, tables: set[str]) -> list[Step]:
    return [step for step in order.steps if not step.writes and step.table in tables and step.where]


def brief(letters: str) -> str:
    """``A3 B5 A`` of a long order."""
    if len(letters) <= 12:
        return letters
    return " ".join(f"{letter}{len([*run])}" for letter, run in groupby(letters))
