"""`shardc export`: weights or a checkpoint -> a folder that `from_pretrained` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardlang.cli import options, output
from shardlang.cli.commands.weights.progress import progress, tell_passed

if TYPE_CHECKING:
    from shardlang.weights.export import Export


@click.command(
    "export",
    epilog="Examples: shardc export trained.safetensors --map net.map -o trained; "
    "shardc export trained.safetensors --map model.map --like ../gpt2 -o trained; "
    "shardc export checkpoints --map std.llama --like ../llama -o trained --json",
)
@click.argument("weights", metavar="WEIGHTS", type=options.There())
@click.option(
    "--map", "names", required=True, metavar="FILE",
    help="The name map by which the weights came in, or one of the library: std.gpt2, std.llama.",
)  # fmt: skip
@click.option(
    "--like", "model", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="FOLDER",
    help="The model to be like: its safetensors or their index, config.json and tokenizer. Without it one file of all "
    "that the map names, in the types of the weights.",
)  # fmt: skip
@click.option("-o", "to", required=True, type=click.Path(path_type=Path), metavar="OUT", help="The folder to write.")
@click.option("--ema", is_flag=True, help="Of a checkpoint, the averages that `ema` keeps.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(weights: Path, names: str, model: Path | None, to: Path, ema: bool, as_json: bool) -> int:
    """Write weights under the names, and in the files, of another library's model.

    WEIGHTS is a file of `--save-weights`, a checkpoint, or a folder of checkpoints: then its newest
    whole one is taken. Settings and tokenizer files are copied from --like. Nothing is unpickled,
    and nothing that is there is replaced."""
    from shardlang.checkpoints import weight_files
    from shardlang.diagnostics.diagnostic import Sink
    from shardlang.weights import export, like
    from shardlang.weights.maps import name_map

    sink = Sink()
    with output.ending(1):
        export.require_free(to)
        read = name_map(names, sink)
        wanted = None
        if read is not None:
            given, passed = weight_files.weights(weights, ema)
            tell_passed(passed)
            wanted = export.export(given, read, like.like(model) if model else like.of_map(read, given.tensors), sink)
        code = output.show(sink)
        if wanted is None:
            return code
        with progress(wanted.bytes) as told:
            export.write(wanted, to, told)
    assert read is not None
    _tell(wanted, to, [] if model else [each for each in read.ignored if each not in wanted.way.filled], as_json)
    return 0


def _tell(wanted: Export, to: Path, ignored: Sequence[str], as_json: bool) -> None:
    """ignored: what the map ignores, where no --like has it."""
    way = wanted.way
    if as_json:
        output.tell(json.dumps({
            "folder": str(to), "files": list(wanted.like.files), "tensors": len(way.filled), "bytes": wanted.bytes,
            "tied": dict(way.tied), "taken_from_like": list(way.kept), "left_out": list(ignored),
        }))  # fmt: skip
        return
    count = len(wanted.like.files)
    output.tell(f"wrote {to}: {len(way.filled)} tensors of {wanted.bytes:,} bytes in {count} file{'s' * (count != 1)}")
    for name, other in way.tied.items():
        output.tell(f"  {name} is {other} once more")
    if way.kept:
        output.tell(f"  taken from {wanted.like.folder}, as the map ignores them: {', '.join(way.kept)}")
    if ignored:
        output.tell(f"  left out, as the map ignores them, and no --like has them: {', '.join(ignored)}")
