"""`shardc import`: a torch module to a program that a person could have written, and a map of its
names."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from shardlang.cli import output
from shardlang.cli.files import apart, claimed, replace_all
from shardlang.cli.output import ending
from shardlang.disk.overwrite_guard import MODEL, NAMES, OPAQUE, REPORT, WEIGHTS, FileKind
from shardlang.errors import RunError
from shardlang.sources.files import Unreadable, read_text

_CODES = ("SH604", "SH608")
# How lines behind a name map begin, each with the digest of a file that was written with it.
_WRITTEN = b"\n# written: "


def _dims(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given:
        name, equals, dims = text.partition("=")
        names = [dim.strip() for dim in dims.split(",")]
        name = name.strip()
        if not equals or not name or not all(dim.isidentifier() and dim.isascii() for dim in names):
            raise click.BadParameter(f"`{text}` is not INPUT=DIM,DIM, as in x=batch,seq", ctx, param)
        if name in found:
            raise click.BadParameter(f"the dims of `{name}` are given twice", ctx, param)
        for dim in names:
            _require_name(dim, ctx, param)
        found[name] = names
    return found


def _require_name(dim: str, ctx: click.Context, param: click.Parameter) -> None:
    """BadParameter where the language has no dim of such a name."""
    from shardlang import driver
    from shardlang.diagnostics.diagnostic import Sink
    from shardlang.sources.source import Source

    sink = Sink()
    driver.parse_source(Source("--dims", f"dim {dim} = 1\n"), sink)
    if sink.failed:
        raise click.BadParameter(sink.found[0].message, ctx, param)


@click.command(
    "import",
    epilog="Examples: shardc import models.small:build -o small.shard; shardc import net.py:build -o net.shard "
    "--weights net.safetensors --dims x=batch,features; shardc import net.py:build -o net.shard --opaque",
)
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option(
    "-o", "--output-file", "to", required=True, metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="The program to write, model.shard; its name map, model.map, is written beside it.",
)  # fmt: skip
@click.option("--weights", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the module's weights, too, as safetensors under its names; "
              "what nothing draws is then given().")  # fmt: skip
@click.option("--dims", multiple=True, metavar="INPUT=DIM,DIM", callback=_dims,
              help="Names of the dims of an input. May be repeated.")  # fmt: skip
@click.option("--output", metavar="NAME", help="Of several results of forward, the one to give.")
@click.option("--accept", multiple=True, type=click.Choice(_CODES),
              help="Import in spite of such a difference; the file then says so. May be repeated.")  # fmt: skip
@click.option("--opaque", is_flag=True,
              help="Where the language has no word for steps, declare operators of your own for them, in "
              "model_ops.shard, with the steps in torch in model_ops.py.")  # fmt: skip
@click.option("--train", is_flag=True, help="Write a `train` behind the models, to fill in.")
@click.option("--names", "given", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Names of dims and models: lines `dim OLD = NEW` and `model OLD = NEW`.")  # fmt: skip
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write what was found, as JSON.")  # fmt: skip
@click.pass_context
def command(
    ctx: click.Context, factory: str, to: Path, weights: Path | None, dims: Mapping[str, list[str]],
    output: str | None, accept: tuple[str, ...], opaque: bool, train: bool, given: Path | None, report: Path | None,
) -> None:  # fmt: skip
    """Write a torch module as a program, with a map of its names.

    This runs the module: MODULE is imported, and FACTORY called, a function without arguments that
    returns a module and example tensors by name. Nothing is written unless the program computes the
    module's values and gradients."""
    if to.suffix != ".shard":
        raise click.BadParameter(f"`{to}` must end in `.shard`: it is a program", ctx, param_hint="-o")
    names = to.with_suffix(".map")
    own = to.with_name(f"{to.stem}_ops.shard") if opaque else None
    python = None if own is None else own.with_suffix(".py")
    _claim({"the program": (to, MODEL), "its name map": (names, NAMES), "--weights": (weights, WEIGHTS),
            "--report": (report, REPORT), "its operators": (own, MODEL), "their Python": (python, OPAQUE)})  # fmt: skip
    from shardlang.importing.example import load
    from shardlang.importing.imported import Wanted, import_module
    from shardlang.importing.text.renamed import parse

    with ending(1):
        lines = [] if given is None else parse(_read(given), str(given))
        beside = None if weights is None else Path(os.path.relpath(weights, to.parent)).as_posix()
        wanted = Wanted(factory, dims, frozenset(accept), output=output, names=lines, train=train, weights=beside,
                        map=names.name, opaque=None if own is None else own.stem)  # fmt: skip
        found = import_module(load(factory), wanted)
    files = {to: found.text.encode(), names: found.names.encode()}
    if own is not None and python is not None and found.declared:
        files |= {own: found.declared.encode(), python: found.python.encode()}
    files[names] += _digests(files)
    files |= {} if weights is None else {weights: found.weights()}
    listed = ", ".join(map(str, files))
    if report is not None:
        files[report] = f"{json.dumps(found.report)}\n".encode()
    replace_all(files)
    _tell(listed, found.report, own)


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except Unreadable as error:
        raise click.BadParameter(f"`{path}` {error}", param_hint="--names") from error


def _claim(files: Mapping[str, tuple[Path | None, FileKind]]) -> None:
    """Ends the command where one of its files would replace what is none of its kind, another of
    them, or what somebody has changed."""
    for path, kind in files.values():
        claimed(path, kind)
    paths = {what: path for what, (path, _) in files.items()}
    apart(paths)
    names = paths["its name map"]
    assert names is not None
    with ending(2):
        _require_unchanged(set(paths.values()), names)


def _digest(made: bytes) -> str:
    return hashlib.sha256(made).hexdigest()[:16]


def _digests(files: Mapping[Path, bytes]) -> bytes:
    return b"".join(_WRITTEN + f"{_digest(made)} {path.name}".encode() for path, made in files.items()) + b"\n"


def _require_unchanged(paths: Collection[Path | None], names: Path) -> None:
    """RunError SH512 where somebody has changed one of the files since an import wrote it, by the
    digests that its name map has."""
    whole, *lines = names.read_bytes().split(_WRITTEN) if names.is_file() else [b""]
    for digest, _, name in (line.decode().strip().partition(" ") for line in lines):
        path = names.with_name(name)
        if path in paths and path.is_file() and digest != _digest(whole if path == names else path.read_bytes()):
            fact = f"an import would replace changes that were made to `{name}`"
            quoted = shlex.quote(str(path))
            raise RunError("SH512", fact, file=path, help=f"keep them: mv {quoted} {quoted}.mine; or name another "
                           "file for -o")  # fmt: skip


def _tell(files: str, report: Mapping[str, Any], own: Path | None) -> None:
    error = report["largest difference"]
    output.tell(f"wrote {files}: values and gradients are the module's, to {error:.1g} in float64")
    for fact, code in report["accepted"].items():
        output.tell(f"note: {code}: {fact}")
    unused = report["unused parameters"]
    if unused:
        more = f" and {len(unused) - 3} more" * (len(unused) > 3)
        output.tell(f"note: no result depends on {', '.join(f'`{name}`' for name in unused[:3])}{more}: left out")
    if report["opaque"]:
        names = ", ".join(f"`{name}`" for name in report["opaque"])
        output.tell(f"{names}: not verified yet; next: shardc verify {own}")
