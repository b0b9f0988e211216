"""`rt.main_by_size({8: "ranks-8", 16: "ranks-16"})`: runs the program that was compiled for as many
ranks as there are.

torchrun starts fewer ranks after the loss of a host; the run goes on by another program, from the
same checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from shardlang.errors import RunError
from shardlang.launch.started import started
from shardlang.runtime.launch.entry import main
from shardlang.runtime.launch.launcher import read_program
from shardlang.terminal.signals import FAILED


def main_by_size(folders: Mapping[int, str]) -> None:
    """Runs the program in the folder for this number of ranks, beside the file that is run; exits
    with 0, or 3 where the run failed. folders: by number of ranks."""
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
