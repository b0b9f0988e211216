"""`shardc compile`: the emitted program, written to a folder."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from shardlang import driver
from shardlang.cli import options, output
from shardlang.cli.files import write_files
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.locks import Claims
from shardlang.disk.overwrite_guard import EMITTED, target
from shardlang.errors import RunError
from shardlang.sources.files import folder_of


def emitted(
    file: str, ranks: int, strategy: str | None, overrides: Mapping[str, str]
) -> tuple[Mapping[str, str] | None, int]:
    """The emitted files of a program (None after errors), and the exit code; shows diagnostics."""
    sink = Sink()
    files = driver.compile_source(options.source(file), ranks, sink, overrides, strategy)
    return files, output.show(sink)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes the emitted files, which no other process writes there meanwhile. RunError where other
    files are in the way."""
    with Claims() as claims:
        claims.folder(folder, EMITTED.what)
        for name in files:
            target(folder / name, EMITTED)
        write_files(folder, files)


@click.command(
    "compile",
    epilog="Example: shardc compile model.shard --ranks 8 -o out; torchrun --nproc-per-node 8 out/main.py --base .",
)
@options.file_argument
@options.ranks_option(required=True)
@click.option("-o", "folder", required=True, metavar="DIR", help="The folder to write to; made if absent.")
@options.strategy_option
@options.set_option
@click.pass_context
def command(
    ctx: click.Context, file: str, ranks: int, folder: str, strategy: str | None, overrides: Mapping[str, str]
) -> None:
    """Write the torch program that each rank runs."""
    files, code = emitted(file, ranks, strategy, overrides)
    if files is None:
        ctx.exit(code)
    try:
        write(Path(folder), files)
    except RunError as error:
        print(error, file=sys.stderr)
        ctx.exit(2)
    for name in files:
        output.tell(f"wrote {os.path.join(folder, name)}")
    main = shlex.quote(os.path.join(folder, "main.py"))
    base = os.path.relpath(folder_of(file))
    said = next(line.strip() for line in files["main.py"].splitlines() if line.lstrip().startswith("torchrun"))
    output.tell(f"run it: {said.removesuffix('main.py')}{main} --base {shlex.quote(base)}")
