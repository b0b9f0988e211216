"""The files of one run: claims them all before the first is written, and gives a run a folder of
its own for its logs.

Without `--log-dir` that is `shardlang-logs/run-N`, and `shardlang-logs/latest` is a link to the
newest. A file in the way, or in use by another run, is a RunError."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from shardlang.disk.locks import LOCK, Claims, require_apart, unwritable
from shardlang.disk.overwrite_guard import EMITTED, FIGURES, FLIGHT, LOG, RECORD, TRACE, WEIGHTS, is_own, target
from shardlang.errors import RunError
from shardlang.frozen.records import dataclass

LOGS = Path("shardlang-logs")
# So many folders of runs stay in LOGS.
KEPT = 20
_RUN = re.compile(r"run-(\d+)")
_LOG = re.compile(r"rank-\d+\.(log|collectives)")
_FLIGHT = re.compile(r"nccl-rank-\d+")
# In the folder of a run: that it may go, and the sha256 of each emitted file, so that one that was
# changed is kept.
_MARK = ".shardlang-run"
_MARKED = "The folder of a run of shardlang: it goes in time, unless anything in it changes."


@dataclass(frozen=True)
class RunFiles:
    """Where a run writes, links followed."""

    log_dir: Path
    metrics: Path | None
    save_weights: Path | None


def log_file(log_dir: Path, rank: int) -> Path:
    return log_dir / f"rank-{rank}.log"


def record_file(log_dir: Path, rank: int) -> Path:
    return log_dir / f"rank-{rank}.collectives"


def trace_file(log_dir: Path, rank: int) -> Path:
    return log_dir / f"trace-rank-{rank}.json"


def steps_of(text: str) -> range:
    """The steps that `10` or `10..13` names, the end exclusive; ValueError where it names none."""
    found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text)
    steps = range(int(found[1]), int(found[2] or int(found[1]) + 1)) if found else range(0)
    if not steps or not steps.start:
        raise ValueError(f"`{text}` is no step and no range of steps, as in 10 or 10..13")
    return steps


def claim(
    claims: Claims, ranks: int, log_dir: Path | None, metrics: Path | None, save_weights: Path | None,
    emitted: Mapping[str, str] | None = None, traces: bool = False,
) -> RunFiles:  # fmt: skip
    """Claims what a run writes. log_dir: None for its own. emitted: the files to write there.
    traces: whether ranks write a trace there too."""
    emitted = emitted or {}
    metrics = claims.lines(metrics, FIGURES) if metrics is not None else None
    save_weights = claims.file(save_weights, WEIGHTS) if save_weights is not None else None
    folder = log_dir if log_dir is not None else _numbered(LOGS, emitted)
    claims.folder(folder, "logs")
    written = [(log_file(folder, rank), LOG) for rank in range(ranks)]
    written += [(record_file(folder, rank), RECORD) for rank in range(ranks)]
    written += [(folder / name, EMITTED) for name in emitted]
    written += [(trace_file(folder, rank), TRACE) for rank in range(ranks if traces else 0)]
    for path, kind in written:
        require_apart(target(path, kind), kind.what, is_folder=False)
    return RunFiles(folder, metrics, save_weights)


def _numbered(parent: Path, emitted: Mapping[str, str]) -> Path:
    """A new folder run-N, with N above all that are there; the oldest beyond KEPT go."""
    require_apart(parent, "logs")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        found = ((_RUN.fullmatch(path.name), path) for path in parent.iterdir() if not path.is_symlink())
        there = {int(match[1]): path for match, path in found if match and path.is_dir()}
        for number in itertools.count(max(there, default=0) + 1):
            folder = parent / f"run-{number}"
            require_apart(folder, "logs")
            with suppress(FileExistsError):
                folder.mkdir()
                break
        sums = (f"{_sum(text.encode())}  {name}\n" for name, text in emitted.items())
        (folder / _MARK).write_text(f"{_MARKED}\n{''.join(sums)}")
    except OSError as error:
        raise unwritable(parent, "logs", error, "--log-dir DIR, a folder for this run alone") from None
    _link(parent, number)
    for old in sorted(there, reverse=True)[KEPT - 1 :]:
        _drop(there[old])
    return folder


def _link(parent: Path, number: int) -> None:
    """Makes `latest` a link to a run, unless it is something else than such a link."""
    latest, made = parent / "latest", parent / f".latest-{number}"
    with suppress(OSError):
        if os.path.lexists(latest) and not (latest.is_symlink() and _RUN.fullmatch(os.readlink(latest))):
            return
        made.symlink_to(f"run-{number}", target_is_directory=True)
        os.replace(made, latest)


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _drop(folder: Path) -> None:
    """Removes the folder of a run that has ended, if it is as the run has left it."""
    mark = folder / _MARK
    with suppress(RunError, OSError, ValueError):
        first, *lines = mark.read_text().splitlines()
        if first != _MARKED or mark.is_symlink():
            return
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        with Claims() as claims:
            claims.folder(folder, "logs")
            written = [path for path in folder.iterdir() if path.name not in (_MARK, LOCK)]
            if not all(_is_unchanged(path, sums) for path in written):
                return
            # The mark last: until then the rest can be told.
            for path in (*written, mark):
                path.unlink()
        folder.rmdir()


def _is_unchanged(path: Path, sums: Mapping[str, str]) -> bool:
    """Whether a file of a run's folder is what the run wrote. sums: of the emitted files. A log, a
    record of collectives, or what the flight recorder wrote (nothing, where the rank was ended too
    early) is known by its name and how it begins."""
    if path.name in sums:
        return is_own(path, EMITTED) and _sum(path.read_bytes()) == sums[path.name]
    if _FLIGHT.fullmatch(path.name):
        return is_own(path, FLIGHT) or (path.lstat().st_size == 0 and path.is_file() and not path.is_symlink())
    return _LOG.fullmatch(path.name) is not None and is_own(path, LOG, RECORD)
