"""`shardc convert`: a checkpoint of ours or of torch -> one of torch, or one file of weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from shardlang.cli import output
from shardlang.cli.commands.weights.progress import progress, tell_passed
from shardlang.errors import RunError


@click.command(
    "convert",
    epilog="Examples: shardc convert checkpoints/step-100 --to dcp -o step-100-dcp; "
    "shardc convert their_checkpoint --to safetensors --under model. -o weights.safetensors",
)
@click.argument("checkpoint", metavar="CHECKPOINT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--to", "form", required=True, type=click.Choice(["dcp", "safetensors"]),
    help="A folder of torch.distributed.checkpoint, or one file of weights.",
)  # fmt: skip
@click.option("-o", "to", required=True, type=click.Path(path_type=Path), metavar="OUT",
              help="The folder or the file to write.")  # fmt: skip
@click.option("--under", default="", metavar="PREFIX",
              help="Only the tensors whose names begin so, called without it.")  # fmt: skip
@click.option("--ema", is_flag=True, help="In the file of weights, the averages that `ema` keeps.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(checkpoint: Path, form: str, to: Path, under: str, ema: bool, as_json: bool) -> None:
    """Write a checkpoint in another form.

    CHECKPOINT is one of `shardc run`, a folder of them (then the newest whole one is taken), or a
    folder that torch.distributed.checkpoint wrote. A file of weights has the parameters and states;
    of torch's checkpoints all tensors, as these do not tell which is which. Pickled metadata are
    opened by an unpickler that knows the classes of such metadata and nothing else."""
    from shardlang.checkpoints.folders import steps
    from shardlang.checkpoints.index import INDEX

    theirs = not (checkpoint / INDEX).exists() and not steps(checkpoint)
    if form == "dcp" and (theirs or under):
        raise click.UsageError("--to dcp is for a checkpoint of `shardc run`, and takes all of it")
    if ema and (theirs or form == "dcp"):
        raise click.UsageError("--ema is for a checkpoint of `shardc run`, --to safetensors")
    left: Sequence[str] = ()
    with output.ending(1):
        if form == "dcp":
            names = _dcp(checkpoint, to)
        else:
            names, left = _safetensors(checkpoint, theirs, under, to, ema)
    if as_json:
        output.tell(json.dumps({"written": str(to), "form": form, "tensors": names, "left_out": list(left)}))
        return
    output.tell(f"wrote {to}: {len(names)} tensors")
    if left:
        output.tell(f"  left out, as they are no tensors: {len(left)}, such as {left[0]}")


def _dcp(checkpoint: Path, to: Path) -> list[str]:
    from shardlang.checkpoints.weight_files import CheckpointWeights
    from shardlang.runtime.dcp.written import write
    from shardlang.weights.export import whole_folder

    found = CheckpointWeights(checkpoint)
    tell_passed(found.passed)
    total = sum(layout.type.nbytes for layout in found.index.tensors.values())
    with progress(total) as told, whole_folder(to) as draft:
        write(found.index, draft, told)
    return list(found.index.tensors)


def _safetensors(checkpoint: Path, theirs: bool, under: str, to: Path, ema: bool) -> tuple[list[str], Sequence[str]]:
    from shardlang.checkpoints.weight_files import CheckpointWeights, Weights
    from shardlang.weights.export import write_file

    left: Sequence[str] = ()
    weights: Weights
    if theirs:
        from shardlang.runtime.dcp.foreign import Foreign

        weights = found = Foreign(checkpoint)
        left = [name for name in found.others if name.startswith(under)]
    else:
        weights = ours = CheckpointWeights(checkpoint, ema)
        tell_passed(ours.passed)
    names = {name: name.removeprefix(under) for name in weights.tensors if name.startswith(under)}
    if not names:
        raise RunError("SH616", f"no tensor has a name that begins with `{under}`", file=checkpoint)
    with progress(sum(weights.tensors[name].nbytes for name in names)) as told:
        write_file(weights, names, to, told)
    return list(names.values()), left
