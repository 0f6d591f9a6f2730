"""``distlock doctor``: the findings in words or as JSON."""

from __future__ import annotations

import json
import textwrap
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from ..core.findings import SEVERITIES, Finding, Severity
from ..core.registry import registry
from ..ops.doctor import by_severity, examine_store
from ..ops.held_locks import chosen_stores
from .exit_codes import DONE, NO
from .output import Output
from .parser import Context

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def doctor(options: Namespace, context: Context) -> int:
    found: list[Finding] = []
    for store in chosen_stores(registry(), options.store):
        if context.errors.terminal and not options.json:
            context.errors.stream.write(f"Asking store {store.alias} …\n")
        found += examine_store(store)
    found = by_severity([*found, *context.findings()])
    if options.json:
        context.out.line(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        print_findings(found, context.out)
    least = SEVERITIES.index(options.fail_level)
    return NO if any(SEVERITIES.index(finding.severity) >= least for finding in found) else DONE


def print_findings(found: Sequence[Finding], out: Output) -> None:
    for finding in found:
        title = f"{finding.code} {finding.severity}"
        out.line(f"{out.paint(title, 'bold', _COLOURS[finding.severity])}  {finding.where}")
        for label, text in (("what", finding.problem), ("why", finding.harm), ("set", finding.remedy)):
            if text:
                out.line(textwrap.fill(text, 100, initial_indent=f"  {label:5}", subsequent_indent=" " * 7))
        out.line()
    counts = Counter(finding.severity for finding in found)
    said = ", ".join(_number(counts[severity], severity) for severity in reversed(SEVERITIES) if counts[severity])
    out.line(f"Found: {said}. The page doctor of the documentation explains each code." if found else "Nothing found.")


def _number(count: int, severity: Severity) -> str:
    return f"{count} {severity}{'s' if count > 1 and severity != 'info' else ''}"
