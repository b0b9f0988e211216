"""`shardc checkpoint`: what a checkpoint holds, and whether it is whole, without torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from shardlang.cli import options, output

_folder = click.argument("folder", metavar="DIR", type=options.There())
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("checkpoint", epilog="Examples: shardc checkpoint show checkpoints; shardc checkpoint verify checkpoints")
def command() -> None:
    """Show what a checkpoint holds, or verify that it is whole.

    DIR is a checkpoint (`step-100`), or the folder of a run's checkpoints."""


@command.command("show")
@_folder
@_json
def show(folder: Path, as_json: bool) -> None:
    """Show the step, the settings and the tensors of a checkpoint (the newest of a folder's)."""
    from shardlang.checkpoints.looked_at import chosen, shown

    with output.ending(1):
        facts = shown(chosen(folder)[0])
    for line in [json.dumps(facts)] if as_json else _lines(facts):
        output.tell(line)


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    sizes, tensors = facts["files"].values(), facts["tensors"]
    yield f"{facts['folder']}: step {facts['step']}, format {facts['format']}"
    most = f", the largest {max(sizes) * len(sizes) / sum(sizes):.2f} times the mean" if len(sizes) > 1 else ""
    yield f"written by {facts['ranks']} ranks: {sum(sizes):,} bytes in {len(sizes)} files{most}"
    for name in ("batch", "seed", "skipped", "loss_scale"):
        if name in facts:
            yield f"{name}: {facts[name]}"
    best = facts.get("best")
    if isinstance(best, dict):
        yield "best: " + ", ".join(f"{name} {_fact(name, value)}" for name, value in best.items())
    data = facts.get("data")
    for name, value in data.items() if isinstance(data, dict) else ():
        yield f"data.{name}: {_fact(name, value)}"
    kinds = facts.get("optimizers")
    used = sorted({str(kind) for kind in kinds.values()}) if isinstance(kinds, dict) else []
    yield f"optimizers: {', '.join(used) or 'none'}"
    yield f"{len(tensors)} tensor{'s' * (len(tensors) != 1)}:"
    width = max((len(each["name"]) for each in tensors), default=0)
    for each in tensors:
        parts = "" if each["parts"] == 1 else f"  in {each['parts']} parts"
        yield f"  {each['name']:{width}}  {_type(each['type'].lower(), each['shape'])}{parts}"


def _type(element: Any, dims: Sequence[Any]) -> str:
    """A type as programs write it."""
    return f"{element}[{', '.join(map(str, dims))}]"


def _fact(name: str, value: Any) -> str:
    """A recorded fact of the data: `x f32[32], id i64[] below 9`. The index may have anything."""
    match name, value:
        case "fields", dict() if all(isinstance(each, list) and each for each in value.values()):
            return ", ".join(f"{name} {_field(*each)}" for name, each in value.items()) or "none"
        case "files", [[str(), int(), str()], *others] if all(isinstance(x, list) and len(x) == 3 for x in others):
            return ", ".join(f"{name} of {size} bytes (checksum {crc})" for name, size, crc in value)
    return _told(value)


def _field(element: Any, *rest: Any) -> str:
    dims, bounds = ([each for each in rest if isinstance(each, str) == text] for text in (False, True))
    return " ".join([_type(element, dims), *bounds])


def _told(value: Any) -> str:
    """Another recorded value, in words."""
    if isinstance(value, dict):
        value = [f"{name} {_told(each).replace(',', '')}" for name, each in value.items()]
    if isinstance(value, list):
        return ", ".join(map(_told, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


@command.command("verify")
@_folder
@_json
def verify(folder: Path, as_json: bool) -> int:
    """Read every byte of a checkpoint, or of all in a folder, and report what is broken.

    The exit code is 1 if any is."""
    from shardlang.checkpoints.looked_at import broken, chosen

    with output.ending(1):
        paths = chosen(folder)
    code = 0
    for path in paths:
        found = list(broken(path))
        code |= bool(found)
        if as_json:
            wrong = [{"file": str(each.file), "message": each.message} for each in found]
            output.tell(json.dumps({"folder": str(path), "whole": not found, "broken": wrong}))
            continue
        output.tell(f"{path}: {'whole' if not found else 'broken'}")
        for error_of_file in found:
            print(error_of_file, file=sys.stderr)
    return code
