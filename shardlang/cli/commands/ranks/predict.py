"""`shardc predict`: under any strategy, the values of a trained model for each example of a set, or
what it goes on with after prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardlang import driver
from shardlang.check.generates import generates, returned
from shardlang.cli import options, output
from shardlang.cli.commands.ranks import generation
from shardlang.cli.files import require_folder, write_files
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.locks import Claims
from shardlang.disk.overwrite_guard import GENERATED, PREDICTED, SAVED, is_own
from shardlang.disk.run_files import claim
from shardlang.disk.scratch import scratch
from shardlang.hints.nearest import offer
from shardlang.launch.started import require_alone
from shardlang.sources.files import folder_of

if TYPE_CHECKING:
    from shardlang.check.program import CheckedProgram
    from shardlang.cli.commands.ranks.generation import Starter
    from shardlang.graph.graph import Graph
    from shardlang.runtime.data.dataset import Dataset
    from shardlang.runtime.launch.rank import Work


@click.command(
    "predict",
    epilog="Examples: shardc predict examples/digits.shard --ranks 2 --weights weights.safetensors --out scores.npz; "
    "shardc predict model.shard --ranks 8 --checkpoint checkpoints --value logits --out logits.npz; "
    "shardc predict model.shard --ranks 2 --checkpoint checkpoints --generate --prompt 'To be' --temperature 0.8",
)
@options.file_argument
@options.ranks_option
@options.strategy_option
@options.set_option
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE",
    help="The .npz file to write; with --generate, a file of JSON lines.",
)  # fmt: skip
@click.option("--weights", type=options.There(), metavar="FILE", help="Safetensors of the parameters.")
@click.option(
    "--checkpoint", type=options.There(), metavar="DIR",
    help="A checkpoint, or a folder of them: the newest whole one.",
)  # fmt: skip
@click.option("--ema", is_flag=True, help="With --checkpoint: the averages that `ema` keeps of the parameters.")
@click.option(
    "--value", "wanted", multiple=True, metavar="NAME",
    help="A value to write. May be repeated. [default: all that `train` names for each example]",
)  # fmt: skip
@generation.options
@options.device_option
@options.log_dir_option
def command(
    asked: options.Asked, /, out: Path | None, weights: Path | None, checkpoint: Path | None,
    ema: bool, wanted: tuple[str, ...], device: str | None, log_dir: Path | None, generate: bool, **further: Any,
) -> int:  # fmt: skip
    """Write what a trained model gives for each example.

    The examples are those of `eval`, without one those of `data`. With --generate, a language model
    goes on with prompts."""
    if weights is not None and checkpoint is not None:
        raise click.UsageError("the parameters are of --weights or of --checkpoint, not of both")
    if ema and checkpoint is None:
        raise click.UsageError("a checkpoint has the averages of the parameters: give --checkpoint DIR with --ema")
    sampling = generation.asked(generate, further)
    if out is not None:
        require_folder(out)
    elif sampling is None:
        raise click.UsageError("nothing says where the values go: give --out FILE.npz")
    sink = Sink()
    program = asked.program(sink)
    names, text = _wanted(program, wanted, sampling, sink)
    kept = _keeping(program, names, weights, checkpoint) if program is not None and not sink.failed else None
    plan = driver.plan_program(kept, asked.strategy, asked.ranks, sink) if kept is not None else None
    files = driver.emit_plan(plan, sink) if plan is not None else None
    code = output.show(sink)
    if files is None:
        return code
    with output.ending(3):
        require_alone("`shardc predict`")
        with Claims() as claims, scratch("predict") as apart:
            target = claims.file(out or apart.path / "generated.jsonl", PREDICTED if text is None else GENERATED)
            folder = claim(claims, asked.ranks, log_dir, None, None, files).log_dir
            started = partial(_started, files, folder, asked.ranks, device, folder_of(asked.file))
            written = target, checkpoint, ema
            code = _predict(started, names, *written) if text is None else text(started, *written, out is None)
    return code


def _wanted(
    program: CheckedProgram | None, wanted: tuple[str, ...], asked: generation.Sampling | None, sink: Sink
) -> tuple[dict[str, str], Callable[..., int] | None]:
    """The paths of the values to keep, with their names; and what makes text."""
    if program is None or program.training is None:
        return {}, None
    if asked is None:
        return _names(program, wanted), None
    if len(wanted) > 1:
        raise click.UsageError("text is made of one value: give --value once")
    named = [v for v in program.graph.values if wanted and v.path in _names(program, wanted)]
    found = generates(program, named[0] if named else None, sink)
    if found is None:
        return {}, None
    generation.tokenizer_for(asked, found.vocab)
    return {found.scores.path: "scores"}, partial(generation.generate, asked, (found.tokens.name, found.vocab))


def _names(program: CheckedProgram, wanted: tuple[str, ...]) -> dict[str, str]:
    """The paths of the values to write, with their names. UsageError where there is no such
    value."""
    from shardlang.emit.text.names import short_names
    from shardlang.graph.graph import Kind
    from shardlang.syntax import ast

    graph = program.graph
    each = [v for v in graph.values if v.kind is Kind.RESULT and any(graph.batch in term for term in v.type.dims)]
    called = short_names(graph)
    known = {called[value.id]: value for value in each}
    ids = {value.id for value in each}
    by_path = {path: graph.values[at[0]] for path, at in graph.addresses.items() if ids.issuperset(at) and len(at) == 1}
    if not wanted:
        tree = driver.parse_source(program.source, Sink())
        named = {s.name.text for item in tree.items if isinstance(item, ast.Train) for s in item.settings}
        wanted = tuple(name for name in known if name in named)
    for name in wanted:
        if name not in known and name not in by_path:
            help = offer(name, known, _some(called, known, graph))
            raise click.UsageError(f"there is no value `{name}` of each example; {help}")
    if not wanted:
        help = "name one there, as `scores = model(x)`, or give one by --value"
        raise click.UsageError(f"`train` names no value of each example: {help}; {_some(called, known, graph)}")
    return {(known.get(name) or by_path[name]).path: name for name in wanted}


def _some(called: Mapping[int, str], known: Mapping[str, object], graph: Graph) -> str:
    """Values that may be asked for: what the model returns, and others."""
    result = returned(graph)
    first = f"the model returns {called[result.id]}; " if result is not None and result.id in called else ""
    more = f" and {len(known) - 12} more: --value takes a path of `shardc plan` too" if len(known) > 12 else ""
    return f"{first}there are: {', '.join([*known][:12])}{more}"


def _keeping(
    program: CheckedProgram, names: Mapping[str, str], weights: Path | None, checkpoint: Path | None
) -> CheckedProgram:
    """The program, whose evaluation keeps values. UsageError where nothing says its parameters."""
    training = program.training
    if training is None:
        return program
    if weights is None and checkpoint is None and training.init is None:
        raise click.UsageError("nothing says the trained parameters: give --weights FILE or --checkpoint DIR")
    if weights is not None:
        # What --save-weights wrote has the program's paths; any other file is one for `init`.
        theirs = training.init[1] if training.init is not None and not is_own(weights, SAVED) else {}
        rest = {key: value for key, value in theirs.items() if key == "names"}
        training = replace(training, init=("safetensors", {"path": str(weights.absolute()), **rest}))
    elif checkpoint is not None:
        training = replace(training, init=None)
    training = replace(training, eval=training.eval or training.data, checkpoint=None, log=None)
    return replace(program, training=training, predicted=tuple(names))


def _predict(started: Starter, names: Mapping[str, str], out: Path, checkpoint: Path | None, ema: bool) -> int:
    """Writes the values of each example; the exit code."""
    from shardlang.runtime.predict.examples import Predict

    return started(Predict(out, names, checkpoint, ema))


def _started(
    files: Mapping[str, str], folder: Path, ranks: int, device: str | None, base: Path, work: Work,
    data: Mapping[str, Dataset] | None = None,
) -> int:  # fmt: skip
    """Runs the emitted files, whose ranks do a work, on their own data or what is given; the exit
    code."""
    write_files(folder, files)
    from shardlang.runtime.launch.devices import chosen
    from shardlang.runtime.launch.launcher import launch_program, read_program

    program = read_program(folder / "main.py")
    program.base = base
    return launch_program(
        program, folder / "main.py", ranks, devices=chosen(device, ranks), log_dir=folder, metrics=None,
        save_weights=None, work=work, data=data,
    )  # fmt: skip
