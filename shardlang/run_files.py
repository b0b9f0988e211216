"""The files of one run: claims them all before the first is written, and gives a run a folder of its own for its logs.

Without `--log-dir` that is `shardlang-logs/run-N`, and `shardlang-logs/latest` is a link to the newest. What is in the
way, or in use by another run, is a RunError.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from shardlang.errors import RunError
from shardlang.locks import Claims
from shardlang.owned import EMITTED, LOG, WEIGHTS, is_own, target
from shardlang.records import dataclass

LOGS = Path("shardlang-logs")
# So many folders of runs stay in LOGS.
KEPT = 20
_RUN = re.compile(r"run-(\d+)")


@dataclass(frozen=True)
class RunFiles:
    """Where a run writes, links followed."""

    log_dir: Path
    metrics: Path | None
    save_weights: Path | None


def log_file(log_dir: Path, rank: int) -> Path:
    return log_dir / f"rank-{rank}.log"


def claim(
    claims: Claims, ranks: int, log_dir: Path | None, metrics: Path | None, save_weights: Path | None,
    emitted: Iterable[str] = (),
) -> RunFiles:  # fmt: skip
    """Claims what a run writes. log_dir: None for one of its own. emitted: names of files to be written there."""
    metrics = claims.figures(metrics) if metrics is not None else None
    save_weights = claims.file(save_weights, WEIGHTS) if save_weights is not None else None
    folder = log_dir if log_dir is not None else _numbered(LOGS)
    claims.folder(folder, "logs")
    logs = [target(log_file(folder, rank), LOG) for rank in range(ranks)]
    texts = [target(folder / name, EMITTED) for name in emitted]
    seen: set[Path] = set()
    for path in (p for p in (metrics, save_weights, *logs, *texts) if p is not None):
        if path in seen:
            raise RunError("SH512", "two files of this run would be one", file=path, help="give each its own name")
        seen.add(path)
    return RunFiles(folder, metrics, save_weights)


def _numbered(parent: Path) -> Path:
    """A new folder run-N, with N above all that are there; the oldest beyond KEPT go."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        there = _runs(parent)
        for number in itertools.count(max(there, default=0) + 1):
            with suppress(FileExistsError):
                (parent / f"run-{number}").mkdir()
                break
    except OSError as error:
        reason = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise RunError(
            "SH512", f"logs cannot be written: {reason}", file=parent, help="--log-dir DIR, a folder for this run alone"
        ) from None  # fmt: skip
    _link(parent, number)
    for old in sorted(there, reverse=True)[KEPT - 1 :]:
        _drop(there[old])
    return parent / f"run-{number}"


def _runs(parent: Path) -> dict[int, Path]:
    """By its number each folder run-N, no link."""
    found = ((_RUN.fullmatch(path.name), path) for path in parent.iterdir())
    return {int(match[1]): path for match, path in found if match and path.is_dir() and not path.is_symlink()}


def _link(parent: Path, number: int) -> None:
    """Lets `latest` be a link to a run, unless it is something else than such a link: then it stays as it is."""
    latest, made = parent / "latest", parent / f".latest-{number}"
    with suppress(OSError):
        if os.path.lexists(latest) and not (latest.is_symlink() and _RUN.fullmatch(os.readlink(latest))):
            return
        made.symlink_to(f"run-{number}", target_is_directory=True)
        os.replace(made, latest)


def _drop(folder: Path) -> None:
    """Removes the folder of a run that has ended, unless there is anything in it that no run wrote."""
    with suppress(RunError, OSError), Claims() as claims:
        claims.folder(folder, "logs")
        entries = [path for path in folder.iterdir() if path.suffix in (".py", ".log")]
        if len(entries) + 1 == len(list(folder.iterdir())) and all(is_own(path, EMITTED, LOG) for path in entries):
            for path in entries:
                path.unlink()
    with suppress(OSError):
        folder.rmdir()
