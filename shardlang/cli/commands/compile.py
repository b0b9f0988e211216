"""`shardc compile`: the emitted program, written to a folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from shardlang import driver
from shardlang.cli import options, output
from shardlang.cli.files import write_files
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.locks import Claims
from shardlang.disk.overwrite_guard import EMITTED, target
from shardlang.sources.files import folder_of


def emitted(asked: options.Asked) -> Mapping[str, str]:
    """The emitted files of a program, after its diagnostics; errors end the command."""
    sink = Sink()
    source = options.source(asked.file)
    files = driver.compile_source(source, asked.ranks, sink, asked.overrides, asked.strategy)
    code = output.show(sink)
    if files is None:
        raise click.exceptions.Exit(code)
    return files


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
@options.ranks_option
@click.option(
    "-o", "folder", required=True, type=click.Path(), metavar="DIR", help="The folder to write to; made if absent."
)
@options.strategy_option
@options.set_option
def command(asked: options.Asked, folder: str) -> None:
    """Write the torch program that each rank runs."""
    files = emitted(asked)
    with output.ending(2):
        write(Path(folder), files)
    for name in files:
        output.tell(f"wrote {os.path.join(folder, name)}")
    main = shlex.quote(os.path.join(folder, "main.py"))
    base = os.path.relpath(folder_of(asked.file))
    said = next(line.strip() for line in files["main.py"].splitlines() if line.lstrip().startswith("torchrun"))
    output.tell(f"run it: {said.removesuffix('main.py')}{main} --base {shlex.quote(base)}")
