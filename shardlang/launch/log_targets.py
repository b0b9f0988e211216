"""`--log KIND:WHERE` -> a target: where the events of a run go. Says before a run what a target
lacks."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from shardlang.errors import RunError
from shardlang.frozen.records import dataclass

# Kind -> how the rest of a target is written.
KINDS = {"tensorboard": "DIR", "wandb": "PROJECT", "mlflow": "URI", "jsonl": "FILE", "python": "FILE:NAME"}
_PACKAGES = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class LogTarget:
    """place: a folder, a file, a project or a URI, by kind. name: of a function, for `python`."""

    kind: str
    place: str
    name: str = ""

    def __str__(self) -> str:
        return ":".join(filter(None, (self.kind, self.place, self.name)))


def target_of(text: str) -> LogTarget:
    """The target that a text names; ValueError where it names none."""
    kind, _, place = text.partition(":")
    if kind not in KINDS:
        forms = ", ".join(f"{kind}:{rest}" for kind, rest in KINDS.items())
        raise ValueError(f"`{text}` is none of {forms}")
    name = ""
    if kind == "python":
        place, _, name = place.rpartition(":")
    if not place or (kind == "python" and not name.isidentifier()):
        example = {"python": "python:watch.py:on_event", "jsonl": "jsonl:events.jsonl"}.get(kind, f"{kind}:runs")
        raise ValueError(f"`{text}` is not {kind}:{KINDS[kind]}, as in {example}")
    return LogTarget(kind, place, name)


def require(targets: Iterable[LogTarget]) -> None:
    """RunError where a target needs a package, a file or a folder that is not there."""
    for target in targets:
        if target.kind in _PACKAGES and importlib.util.find_spec(target.kind) is None:
            fact = f"`--log {target}` needs {target.kind}, which is not installed"
            raise RunError("SH517", fact, help=f'`pip install "shardlang[{target.kind}]"` installs it')
        if target.kind == "python" and not Path(target.place).is_file():
            raise RunError("SH619", f"`--log {target}` names a file that is not there", file=Path(target.place))
        if target.kind == "jsonl" and not Path(target.place).parent.is_dir():
            fact = f"`--log {target}` cannot be written: there is no folder `{Path(target.place).parent}`"
            raise RunError("SH512", fact, help=f"`mkdir -p {Path(target.place).parent}` makes it")
