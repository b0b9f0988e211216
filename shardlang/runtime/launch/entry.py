"""`rt.main(program)`: what an emitted file does when it is run itself, under torchrun or plainly.

Under torchrun and srun each rank is a process of its own (launch/started.py); run plainly, the file
forks its ranks as `shardc run` does. alone.py says what becomes of a rank that is not forked here.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from shardlang.disk.locks import Claims, unwritable
from shardlang.disk.overwrite_guard import FIGURES, TRACE, WEIGHTS, target
from shardlang.disk.run_files import steps_of, trace_file
from shardlang.errors import RunError
from shardlang.launch.log_targets import KINDS as TARGETS
from shardlang.launch.log_targets import LogTarget, target_of
from shardlang.launch.log_targets import require as require_targets
from shardlang.launch.started import Started, started, started_before
from shardlang.runtime.comm import mesh, primitives
from shardlang.runtime.compiled import asked, require
from shardlang.runtime.device import KINDS, Timeout
from shardlang.runtime.events.start import claim_events, emitted_hash
from shardlang.runtime.launch import flight
from shardlang.runtime.launch.alone import Alone
from shardlang.runtime.launch.devices import chosen, of_rank
from shardlang.runtime.launch.launcher import launch_program, read_program
from shardlang.runtime.launch.meeting import rendezvous
from shardlang.runtime.logs import Log
from shardlang.runtime.program import Profiled, RunProgram
from shardlang.runtime.step.resume import claim_of_program
from shardlang.runtime.step.train import datasets, require_ranks, run
from shardlang.terminal import signals
from shardlang.terminal.signals import FAILED


def _target(text: str) -> LogTarget:
    try:
        return target_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_OPTIONS: Mapping[tuple[str, ...], Mapping[str, Any]] = {
    ("--device",): {"choices": tuple(KINDS)},
    ("--base",): {"type": Path, "help": "folder that the program's paths are relative to"},
    ("--metrics",): {"type": Path, "help": "JSON lines of figures"},
    # torchrun takes `--log` for the beginning of an option of its own.
    ("--log", "--events"): {
        "type": _target, "action": "append", "default": [], "metavar": "KIND:WHERE",
        "help": "who else hears of steps: " + ", ".join(f"{kind}:{rest}" for kind, rest in TARGETS.items()),
    },
    ("--host-storage",): {"type": Path, "help": "folder for what is placed on the host, in mapped files"},
    ("--compile",): {
        "action": argparse.BooleanOptionalAction, "help": "compile each block by torch.compile, or do not",
    },
    ("--resume",): {"action": "store_true", "help": "go on from the latest checkpoint"},
    ("--resume-anyway",): {"action": "store_true", "help": "the same, also with other data, batch or seed"},
    ("--overwrite",): {
        "action": "store_true", "help": "begin anew where checkpoints of an earlier run are, and remove them",
    },
    ("--save-weights",): {"type": Path, "help": "safetensors file of the final parameters"},
    ("--log-dir",): {
        "type": Path, "help": "a log, a record and a trace of each rank; by default a new folder each time, and "
        "without logs where torchrun or srun starts the ranks",
    },
    ("--stall-timeout",): {
        "type": float, "metavar": "SECONDS",
        "help": "a rank that makes no progress for so long ends the run, by default 20 steps, at least 60 s",
    },
    ("--max-restarts",): {
        "type": int, "default": 0, "metavar": "N",
        "help": "after a failure, go on from the newest checkpoint, so often (where this file forks its ranks)",
    },
    ("--profile",): {"type": steps_of, "metavar": "STEPS", "help": "a trace of these steps, as in 10 or 10..13"},
}  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on the ranks that the program was compiled for.")
    for names, how in _OPTIONS.items():
        parser.add_argument(*names, **how)
    found = parser.parse_args()
    if found.max_restarts < 0:
        parser.error("--max-restarts is a whole number, at least 0")
    if found.stall_timeout is not None and not 0 < found.stall_timeout < math.inf:
        parser.error("--stall-timeout is a number of seconds above 0")
    if found.overwrite and (found.resume or found.resume_anyway):
        parser.error("--resume goes on from the checkpoints that --overwrite removes: leave one of them out")
    return found


def main(program: RunProgram, main_file: Path | None = None) -> None:
    """Runs the program as this process was started; exits with 0, or 3 where the run failed.
    main_file: the emitted file, by default the one that is run."""
    options = _arguments()
    main_file = main_file or Path(sys.argv[0]).resolve()
    program.base = options.base or main_file.parent
    program.resume, program.resume_anyway = options.resume or options.resume_anyway, options.resume_anyway
    program.overwrite, program.log_dir = options.overwrite, options.log_dir
    # A launcher that starts ranks again gives them the same words: the run is to go on then.
    program.resume |= options.overwrite and started_before() > 0
    program.host_storage, program.targets = options.host_storage, options.log
    program.compile, program.hash = asked(program, options.compile), emitted_hash(main_file) if options.log else ""
    try:
        place = started()
        require_targets(program.targets if place is None or place.rank == 0 else ())
    except RunError as error:
        print(error, file=sys.stderr)
        _leave(FAILED)
    if place is not None:
        signals.heed_save(program.checkpoint is not None)
        with Claims() as claims:
            code = _one_rank(claims, program, main_file, options, place)
        _leave(code)
    signals.watch()
    try:
        code = launch_program(
            program, main_file, program.ranks, chosen(options.device, program.ranks), options.log_dir,
            options.metrics, options.save_weights, profile=options.profile, stall=options.stall_timeout,
            restarts=options.max_restarts,
        )  # fmt: skip
    except RunError as error:
        print(error, file=sys.stderr)
        code = FAILED
    except signals.Interrupted as signal:
        print(f"\nthe run was ended by {signal}", file=sys.stderr)
        code = FAILED
    signals.over()
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """Ends this process. After a failure at once: to give up groups in which others still talk may
    wait for ever."""
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _logs(options: argparse.Namespace, main_file: Path) -> Path:
    """Where ranks that are not forked here write records and traces."""
    folder: Path = options.log_dir or main_file.parent / "logs"
    return folder


def _profiled(options: argparse.Namespace, main_file: Path, rank: int) -> Profiled | None:
    """The steps that this rank is to write a trace of, where it can be written."""
    if options.profile is None:
        return None
    folder = _logs(options, main_file)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, "a trace", error, "--log-dir DIR, another folder") from None
    target(trace_file(folder, rank), TRACE)
    return Profiled(options.profile, folder, main_file.parent)


def _trained(program: RunProgram, log: Log, save_weights: Path | None) -> int:
    """Trains; the exit code."""
    try:
        run(program, datasets(program), log, save_weights)
    except signals.SavedAndEnded:
        return signals.SAVED
    return 0


def _claim(claims: Claims, program: RunProgram, options: argparse.Namespace, log: Log) -> Path | None:
    """Claims what the run writes, by one rank for all: a run ends when one of them does. Where the
    final parameters go."""
    log.metrics = claims.lines(options.metrics, FIGURES) if options.metrics is not None else None
    save_weights = claims.file(options.save_weights, WEIGHTS) if options.save_weights is not None else None
    claim_events(claims, program)
    claim_of_program(claims, program, save_weights)
    return save_weights


def _one_rank(claims: Claims, program: RunProgram, main_file: Path, options: argparse.Namespace, place: Started) -> int:
    rank, size = place.rank, place.size
    save_weights: Path | None = options.save_weights
    alone = Alone(program, main_file, place, _logs(options, main_file), options.stall_timeout)
    try:
        out = alone.redirect() if options.log_dir is not None else sys.stdout
    except RunError as error:
        alone.tell(str(error))
        return FAILED
    log = Log(out if rank == 0 else None, None)
    try:
        store = rendezvous() if size > 1 else None
        if (lack := alone.begin(store)) and rank == 0:
            log.note(lack)
        require_ranks(program, size)
        if rank == 0:
            save_weights = _claim(claims, program, options, log)
        program.profile = _profiled(options, main_file, rank)
        devices = of_rank(options.device, store, rank, size, place.local_size)
        program.where = devices.told(size)
        require(program, devices.kind)
        Timeout.outlast(options.stall_timeout)
        flight.begin(_logs(options, main_file), _logs(options, main_file), devices.kind)
        mesh.connect(rank, size, devices.device(place.local), store)
        code = _trained(program, log, save_weights)
        primitives.meet()
        alone.ended()
        mesh.disconnect()
    except Exception as error:
        if said := alone.said(error):
            alone.tell(said)
        return FAILED
    finally:
        log.close()
        alone.close()
    return code


def main_by_size(folders: Mapping[int, str]) -> None:
    """Runs the program in the folder for this number of ranks, beside the file that is run; exits
    with 0, or 3 where the run failed. folders: by number of ranks.

    torchrun starts fewer ranks after the loss of a host; the run goes on by another program, from
    the same checkpoints."""
    here = Path(sys.argv[0]).resolve().parent
    sizes = ", ".join(map(str, sorted(folders)))
    try:
        place = started()
        if place is None:
            help = f"run {here / folders[max(folders)] / 'main.py'}, or start this by torchrun"
            raise RunError("SH503", f"there is a program for each of {sizes} ranks; which is not said", help=help)
        if place.size not in folders:
            raise RunError(
                "SH503", f"{place.size} ranks were started, and there are programs for {sizes}",
                help="shardc launch --nodes LEAST:MOST compiles one for each number that fits",
            )  # fmt: skip
        main_file = here / folders[place.size] / "main.py"
        program = read_program(main_file)
    except RunError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)
    main(program, main_file)
