"""The targets of `--log` -> functions that take events: files of TensorBoard, runs of Weights &
Biases and of MLflow, JSON lines, functions of the user's.

Each is opened within its thread, at the first event, so that the run does not wait for an import
either."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from shardlang.errors import RunError
from shardlang.extensions import loaded
from shardlang.extensions.locks import digest
from shardlang.launch.log_targets import LogTarget
from shardlang.runtime.events.stream import Asking, Event, Take
from shardlang.runtime.logs import json_line

_FIGURES = ("step", "evaluation")


def open_function(target: LogTarget, asking: Asking) -> Callable[[], Take]:
    """A function that opens the consumer of a target, which launch/log_targets.py has passed;
    RunError SH619 where a function of the user's is not."""
    if target.kind == "python":
        made = load_function(target)
        return lambda: _python(cast(Callable[..., Any], made), asking)
    return lambda: _OPENED[target.kind](target)


def figures(event: Event) -> dict[str, float]:
    """The numbers of a step or an evaluation, by name."""
    rest = {name: value for name, value in event.items() if name not in ("event", "step")}
    return {name: value for name, value in flat(rest) if isinstance(value, int | float)}


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values by names with dots."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


# --- functions of the user's ---


def load_function(target: LogTarget) -> Callable[..., Any] | None:
    """The function, or class, that a target names; None where it names none. RunError SH619 where
    its file cannot be loaded."""
    if target.kind != "python":
        return None
    path = Path(target.place)
    try:
        text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError("SH619", f"`--log {target}` cannot be read: {error}", file=path) from None
    loaded.module(path, digest(text))
    return loaded.function(digest(text), target.name)


def _python(made: Callable[..., Any], asking: Asking) -> Take:
    """The function, or an object of the class, that takes an event and what it may ask for."""
    take: Any = made() if inspect.isclass(made) else made
    return lambda event: take(event, asking)


# --- files ---


def _jsonl(target: LogTarget) -> Take:
    begun = set[bool]()

    def take(event: Event) -> None:
        # The first event of a run that goes on is of the step that it goes on after.
        mode = "a" if begun or event["step"] else "w"
        with Path(target.place).open(mode) as file:
            file.write(json_line(event))
        begun.add(True)

    return take


def _tensorboard(target: LogTarget) -> Take:
    from torch.utils.tensorboard import SummaryWriter

    opened: list[Any] = []
    begun: list[int] = []

    def take(event: Event) -> None:
        kind, step = event["event"], event["step"]
        if kind == "start":
            # What earlier starts wrote of later steps is hidden; a run that begins anew hides all.
            opened.append(SummaryWriter(target.place, purge_step=step + 1 if step else 0, flush_secs=10))
            begun.append(step)
            rows = [f"| {name} | {value} |" for name, value in flat(event["settings"])]
            opened[0].add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]), step)
        elif kind in _FIGURES:
            # A run that goes on repeats the evaluation of the step that it goes on after.
            known = _written(target.place, step) if step == begun[0] else set()
            for name, value in figures(event).items():
                if name not in known:
                    opened[0].add_scalar(name, value, step)
        else:
            opened[0].add_text(kind, event.get("folder") or event["why"], step)
        if kind == "end":
            opened[0].close()

    return take


def _written(folder: str, step: int) -> set[str]:
    """The names of what files of TensorBoard show of a step."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: set[str] = set()
    for path in sorted(Path(folder).glob("*tfevents*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            if event.HasField("session_log") and event.step <= step:
                found.clear()
            elif event.step == step:
                found.update(value.tag for value in event.summary.value)
    return found


# --- services ---


def _wandb(target: LogTarget) -> Take:
    import wandb

    entity, _, project = target.place.rpartition("/")
    opened: list[Any] = []

    def take(event: Event) -> None:
        kind, step = event["event"], event["step"]
        if kind == "start":
            opened.append(wandb.init(project=project, entity=entity or None, config=dict(event["settings"])))
        elif kind in _FIGURES:
            opened[0].log(figures(event), step=step)
        elif kind == "checkpoint":
            opened[0].summary["checkpoint"] = event["folder"]
        else:
            opened[0].summary["end"] = event["why"]
            opened[0].finish(exit_code=int(event["why"] == "failed"))

    return take


def _mlflow(target: LogTarget) -> Take:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    client, made = MlflowClient(tracking_uri=target.place), [""]

    def take(event: Event) -> None:
        kind, step = event["event"], event["step"]
        if kind == "start":
            made[0] = _mlflow_run(client, str(event["settings"]["program"]))
            params = [Param(name, str(value)[:500]) for name, value in flat(event["settings"])]
            client.log_batch(made[0], params=params)
        elif kind in _FIGURES:
            now = int(time.time() * 1000)
            found = {name: value for name, value in figures(event).items() if math.isfinite(value)}
            client.log_batch(made[0], metrics=[Metric(name, value, now, step) for name, value in found.items()])
        elif kind == "checkpoint":
            client.set_tag(made[0], "checkpoint", event["folder"])
        else:
            client.set_tag(made[0], "end", event["why"])
            client.set_terminated(made[0], "FAILED" if event["why"] == "failed" else "FINISHED")

    return take


def _mlflow_run(client: Any, program: str) -> str:
    """A new run in the experiment of a program."""
    experiment = client.get_experiment_by_name(program)
    number = client.create_experiment(program) if experiment is None else experiment.experiment_id
    return str(client.create_run(number).info.run_id)


_OPENED: dict[str, Callable[[LogTarget], Take]] = {
    "jsonl": _jsonl, "tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow,
}  # fmt: skip
