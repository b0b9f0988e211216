"""A bad line of a click log, which one rank alone may read: all ranks end with the error that names file, line, value.

All kinds of bad lines are run by one process, one after the other, on real ranks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.emit.sources import main_file
from tests.end_to_end.curves import ROOT
from tests.end_to_end.test_hosted import TEXT, clicks
from tests.runtime.apart import apart

pytestmark = pytest.mark.slow
RANKS, BATCH, LINE = 4, 16, 30  # the 14th of the second batch: of rank 3
WHERE = f"clicks.txt:{LINE}"
# What is made of the cells of the line, and what is said of it.
KINDS = {
    "too few columns": (lambda cells: cells[:30], "the line has 30 columns, where 40 are due"),
    "label": (lambda cells: ["yes", *cells[1:]], "the label is 'yes', where 0 or 1 is due"),
    "number": (lambda cells: [*cells[:3], "1.5", *cells[4:]], "number 3 is '1.5', which is no whole number"),
    "category": (lambda cells: [*cells[:20], "68fg", *cells[21:]], "category 7 is '68fg', which is no hexadecimal"),
}
SCRIPT = """
import json, os, sys
from pathlib import Path
from shardlang.runtime.launch.devices import DeviceChoice
from shardlang.runtime.launch.launcher import launch_program, read_program

program, found = read_program(Path("main.py")), {}
for folder in map(Path, sys.argv[1:]):
    os.dup2(os.open(folder / "said", os.O_WRONLY | os.O_CREAT), 2)
    program.base = folder
    logs, metrics = folder / "logs", folder / "m.jsonl"
    code = launch_program(program, Path("main.py"), program.ranks, DeviceChoice("cpu"), logs, metrics, None)
    sys.stderr.flush()
    found[folder.name] = [code, (folder / "said").read_text()]
Path("found.json").write_text(json.dumps(found))
"""


def prepare(folder: Path, strategy: str) -> None:
    # `auc` would have the labels of the whole batch on every rank.
    text = TEXT.replace("  EVAL\n", "").replace("  metric auc = auc(logits, label)\n", "")
    text = text.replace("batch = batch)", "batch = batch, shuffle = false)")
    (folder / "main.py").write_text(main_file(text, RANKS, strategy))
    for name, (change, _) in KINDS.items():
        lines = clicks(3 * BATCH).splitlines()
        lines[LINE - 1] = "\t".join(change(lines[LINE - 1].split("\t")))
        (folder / name).mkdir()
        (folder / name / "clicks.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("strategy", ["host_device", "split_tables", "exchanged"])
def test_every_rank_ends_with_the_error(tmp_path: Path, strategy: str) -> None:
    prepare(tmp_path, strategy)
    command = [sys.executable, "-c", SCRIPT, *KINDS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = warm.run(command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    for name, (code, said) in json.loads((tmp_path / "found.json").read_text()).items():
        assert code == 3, (name, said)
        assert WHERE in said and KINDS[name][1] in said and "Traceback" not in said, (name, said)
        figures = tmp_path / name / "m.jsonl"  # a run without figures leaves no file of them
        steps = [json.loads(line)["step"] for line in figures.read_text().splitlines()] if figures.exists() else []
        assert steps in ([], [1]), (name, steps)  # not a step after it
        for rank in range(RANKS):
            log = (tmp_path / name / "logs" / f"rank-{rank}.log").read_text()
            assert WHERE in log and KINDS[name][1] in log, (name, rank, log)


def test_under_torchrun_one_rank_speaks_for_all(tmp_path: Path) -> None:
    prepare(tmp_path, "exchanged")
    ended = apart(RANKS, "main.py", "--device", "cpu", "--base", "label", folder=tmp_path)
    assert [done.returncode for done in ended] == [3] * RANKS, ended
    told = "".join(done.stderr for done in ended)
    assert told.count("error[SH") == told.count(KINDS["label"][1]) == 1, told
    assert WHERE in told, told
    assert "closed by peer" not in told, told
