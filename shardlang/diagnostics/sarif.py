"""Diagnostics as SARIF 2.1.0, which code hosts and editors show: one run, a rule for each code, a
result a mistake.

The format: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from shardlang import __version__
from shardlang.diagnostics.diagnostic import Diagnostic, Label
from shardlang.diagnostics.explain_pages import title
from shardlang.diagnostics.lines import place

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"


def sarif(diagnostics: Sequence[Diagnostic], rest: Mapping[str, int] | None = None) -> str:
    """The whole log, also for no diagnostics at all. rest: how many of each code it leaves out."""
    codes = sorted({d.code for d in diagnostics})
    driver = {
        "name": "shardc",
        "version": __version__,
        "rules": [{"id": code, "shortDescription": {"text": title(code) or code}} for code in codes],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(d, codes) for d in diagnostics],
    }
    if rest:
        run["properties"] = {"notShown": rest}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(diagnostic: Diagnostic, codes: list[str]) -> dict[str, Any]:
    remarks = [f"note: {note}" for note in diagnostic.notes] + [f"help: {text}" for text in diagnostic.help]
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": codes.index(diagnostic.code),
        "level": diagnostic.severity.value,
        "message": {"text": "\n".join([diagnostic.message, *remarks])},
    }
    if diagnostic.primary is not None:
        result["locations"] = [_location(diagnostic.primary)]
    if diagnostic.labels:
        result["relatedLocations"] = [_location(label) for label in diagnostic.labels]
    return result


def _location(label: Label) -> dict[str, Any]:
    at = place(label)
    keys = {"startLine": "line", "startColumn": "column", "endLine": "end_line", "endColumn": "end_column"}
    region = {key: at[name] for key, name in keys.items()}
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": {"uri": quote(os.fsencode(at["file"]))}, "region": region}
    }
    if label.text:
        location["message"] = {"text": label.text}
    return location
