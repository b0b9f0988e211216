"""`rt.main(program)`: what an emitted file does when it is run itself, under torchrun or plainly.

Under torchrun each rank is a process of its own (RANK, WORLD_SIZE); run plainly, the file forks its
ranks as `shardc run` does. Under torchrun the first rank that fails says what happened, and speaks
for all: those that only see that it is gone hear of it through their store, and say nothing."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from shardlang import ending
from shardlang.ending import FAILED
from shardlang.errors import RunError
from shardlang.locks import Claims, unwritable
from shardlang.owned import TRACE, WEIGHTS, target
from shardlang.run_files import steps_of, trace_file
from shardlang.runtime.comm import mesh, primitives
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.compiled import asked, require
from shardlang.runtime.device import KINDS
from shardlang.runtime.launch.devices import chosen, of_rank
from shardlang.runtime.launch.launcher import launch_program, report_alone
from shardlang.runtime.launch.rank import report_of
from shardlang.runtime.logs import Log
from shardlang.runtime.program import Profiled, Program
from shardlang.runtime.step.resume import claim_of_program
from shardlang.runtime.step.train import datasets, require_ranks, run

# Seconds within which the rank that failed first has said why.
_PATIENCE = 5.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on the ranks that the program was compiled for.")
    parser.add_argument("--device", choices=tuple(KINDS))
    parser.add_argument("--base", type=Path, help="folder that the program's paths are relative to")
    parser.add_argument("--metrics", type=Path, help="JSON lines of figures")
    parser.add_argument("--host-storage", type=Path, help="folder for what is placed on the host, in mapped files")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="compile each block by torch.compile, or do not"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint")
    parser.add_argument("--save-weights", type=Path, help="safetensors file of the final parameters")
    parser.add_argument(
        "--log-dir", type=Path,
        help="a log per rank, where this file forks its ranks, by default a new folder each; traces of --profile",
    )
    parser.add_argument("--profile", type=steps_of, metavar="STEPS", help="a trace of these steps, as in 10 or 10..13")
    return parser.parse_args()


def main(program: Program) -> None:
    """Runs the program as this process was started; exits with 0, or 3 where the run failed."""
    options = _arguments()
    main_file = Path(sys.argv[0]).resolve()
    program.base = options.base or main_file.parent
    program.resume, program.host_storage = options.resume, options.host_storage
    program.compile = asked(program, options.compile)
    if "RANK" in os.environ:
        with Claims() as claims:
            code = _one_rank(claims, program, main_file, options)
        _leave(code)
    ending.watch()
    try:
        code = launch_program(
            program, main_file, program.ranks, chosen(options.device, program.ranks), options.log_dir,
            options.metrics, options.save_weights, profile=options.profile,
        )  # fmt: skip
    except RunError as error:
        print(error, file=sys.stderr)
        code = FAILED
    except ending.Interrupted as signal:
        print(f"\nthe run was ended by {signal}", file=sys.stderr)
        code = FAILED
    ending.over()
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """Ends this process. After a failure at once: to give up groups in which others still talk may
    wait for ever."""
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _speaks(error: Exception, main_file: Path, rank: int) -> bool:
    """Whether this rank is to say how it failed: one speaks for all where all see the same mistake,
    or where the others only miss the one that made it."""
    report = report_of(error, main_file)
    if report.peer:
        return not _told()
    if world.store is None:
        return rank == 0 or report.kind != "error"
    # The first rank that fails leaves the reason for the others.
    first = int(world.store.add("shardlang/failures", 1)) == 1
    if first:
        world.store.set("shardlang/cause", report.message)
    return first or report.kind != "error"


def _told() -> bool:
    """Whether another rank has said why the run failed."""
    until = time.monotonic() + _PATIENCE
    while world.store is not None and time.monotonic() <= until:
        if world.store.check(["shardlang/cause"]):
            return True
        time.sleep(0.05)
    return False


def _profiled(options: argparse.Namespace, main_file: Path, rank: int) -> Profiled | None:
    """The steps that this rank is to write a trace of, where it can be written."""
    if options.profile is None:
        return None
    folder: Path = options.log_dir or main_file.parent / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, "a trace", error, "--log-dir DIR, another folder") from None
    target(trace_file(folder, rank), TRACE)
    return Profiled(options.profile, folder, main_file.parent)


def _one_rank(claims: Claims, program: Program, main_file: Path, options: argparse.Namespace) -> int:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = Log(sys.stdout if rank == 0 else None, None)
    save_weights: Path | None = options.save_weights
    try:
        store = mesh.rendezvous() if size > 1 else None
        require_ranks(program, size)
        if rank == 0:
            # For all ranks: a run ends when one of them does.
            log.metrics = claims.figures(options.metrics) if options.metrics is not None else None
            save_weights = claims.file(save_weights, WEIGHTS) if save_weights is not None else None
            claim_of_program(claims, program, save_weights)
        program.profile = _profiled(options, main_file, rank)
        devices = of_rank(options.device, store, rank, size)
        if devices.note:
            log.note(devices.note)
        require(program, devices.kind)
        mesh.connect(rank, size, devices.device(int(os.environ.get("LOCAL_RANK", rank))), store)
        run(program, datasets(program), log, save_weights)
        primitives.meet()
        mesh.disconnect()
    except Exception as error:
        if _speaks(error, main_file, rank):
            print(report_alone(error, main_file, rank), file=sys.stderr, flush=True)
        return FAILED
    finally:
        log.end()
    return 0
