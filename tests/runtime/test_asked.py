"""SIGUSR1: all ranks save after the same step and end with code 75, whoever has got it; the run that goes on is the one
that was never interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardlang import runtime as rt
from shardlang.runtime.launch.launcher import Child, Watch
from tests import warm
from tests.end_to_end.test_resume import PROGRAM
from tests.runtime.test_launch import after_steps, finish, left, start, write

pytestmark = pytest.mark.slow


def program(folder: Path, line: str, steps: int = 300) -> Path:
    folder.mkdir()
    return write(folder, ranks=2, line=line, steps=steps, checkpoint='rt.Checkpoint(1000, 2, "kept")')


def figures(path: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "step_ms"} for line in lines]


@pytest.mark.parametrize("who", ["the launcher", "one rank"])
def test_a_run_that_is_asked_saves_and_ends_at_one_step(tmp_path: Path, who: str) -> None:
    path = program(tmp_path / "run", "time.sleep(0.004)")
    asked = start(path, "--metrics", "figures.jsonl", "--save-weights", "weights")
    metrics = tmp_path / "run" / "figures.jsonl"
    after_steps(asked, metrics, 20)
    ranks = sorted(pid for pid in left(asked.pid) if pid != asked.pid)
    os.kill(asked.pid if who == "the launcher" else ranks[-1], signal.SIGUSR1)
    code, out, err = finish(asked)
    assert (code, err) == (75, "")
    (kept,) = (tmp_path / "run" / "kept").iterdir()
    step = int(kept.name.removeprefix("step-"))
    assert f"saved after step {step}: the same command with --resume goes on from there" in out
    assert 20 <= step < 300 and len(figures(metrics)) == step
    assert not (tmp_path / "run" / "weights").exists()
    if who == "the launcher":
        code, out, err = finish(start(path, "--metrics", "figures.jsonl", "--save-weights", "weights", "--resume"))
        assert (code, err) == (0, "") and f"goes on after step {step}" in out
        whole = program(tmp_path / "whole", "pass")
        assert finish(start(whole, "--metrics", "figures.jsonl", "--save-weights", "weights"))[0] == 0
        assert figures(metrics) == figures(tmp_path / "whole" / "figures.jsonl")
        one, other = (tmp_path / name / "weights" for name in ("run", "whole"))
        assert one.read_bytes() == other.read_bytes()


def test_ctrl_c_saves_and_a_second_one_ends(tmp_path: Path) -> None:
    # Where the second one comes, no step ends meanwhile.
    path = program(tmp_path / "run", "time.sleep(600 if os.path.exists('stays') else 0.004)", steps=100_000)
    for signals, kept in ((1, True), (2, False)):
        asked = start(path, "--metrics", "figures.jsonl", "--overwrite")
        metrics = tmp_path / "run" / "figures.jsonl"
        after_steps(asked, metrics, 20)
        if not kept:
            (tmp_path / "run" / "stays").touch()
        told = ""
        for _ in range(signals):
            os.killpg(asked.pid, signal.SIGINT)  # as a terminal does, to the ranks too
            told = told or asked.stderr.readline() + asked.stderr.readline()
        code, out, err = finish(asked)
        said = "\nCtrl-C: the run saves after this step and ends; a second Ctrl-C ends it at once\n"
        assert code == 3 and told == said and err == "\nthe run was ended by SIGINT\n" * (not kept)
        said = ": the same command with --resume in place of --overwrite goes on from there"
        assert (said in out) == kept
        assert len(list((tmp_path / "run").glob("kept/step-*"))) == kept
        metrics.unlink()
    kill = "import os, signal; kills = mesh.dp.index == 0 and rt.random.KeyParts.step == 3"
    kill += "; kills and os.kill(os.getppid(), signal.SIGINT)"
    other = program(tmp_path / "other", kill)
    code, out, _ = finish(start(other, "--max-restarts", "1"))
    assert code == 3 and "saved after step" in out and "started again" not in out


def test_a_run_without_checkpoints_says_so_and_goes_on(tmp_path: Path) -> None:
    """To the launcher, and to each rank."""
    kill = "import os, signal; [os.kill(pid, signal.SIGUSR1) for pid in (os.getpid(), os.getppid())]"
    code, out, err = finish(start(write(tmp_path, ranks=2, line=kill, steps=3)))
    assert (code, err) == (0, "SIGUSR1 saves nothing, as the program sets no `checkpoint`; the run goes on\n")
    assert "step 3/3" in out
    assert all(err in (tmp_path / "logs" / f"rank-{rank}.log").read_text() for rank in range(2))


def test_a_run_that_is_asked_before_its_ranks_are_there_saves_after_the_first_steps(tmp_path: Path) -> None:
    path = program(tmp_path / "run", "pass")
    early = "launcher.datasets = lambda p: os.kill(os.getpid(), signal.SIGUSR1) or read(p)"
    lines = "import os, signal", "from shardlang.runtime.launch import launcher", "read = launcher.datasets", early
    path.write_text(path.read_text().replace("rt.main(", "\n    ".join([*lines, "rt.main("])))
    code, out, err = finish(start(path))
    assert (code, err) == (75, "") and "saved after step" in out


def test_a_command_that_is_asked_while_it_compiles_saves_after_the_first_steps(tmp_path: Path) -> None:
    (tmp_path / "p.shard").write_text(PROGRAM % {"optimizer": "sgd(lr = 0.1)", "zero": 1})
    lines = (
        "import os, signal, sys", "from shardlang.cli import main", "from shardlang.cli.commands import run",
        "emitted = run.emitted", "run.emitted = lambda *given: os.kill(os.getpid(), signal.SIGUSR1) or emitted(*given)",
        'sys.exit(main.main(["run", "p.shard", "--ranks", "2"]))',
    )  # fmt: skip
    (tmp_path / "asked.py").write_text("\n".join(lines))
    done = warm.run([sys.executable, "asked.py"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (75, "") and "saved after step" in done.stdout


def test_a_command_that_is_asked_as_it_begins_is_not_killed(tmp_path: Path) -> None:
    """Before its own modules are imported; `check` has nothing to save."""
    (tmp_path / "p.shard").write_text(PROGRAM % {"optimizer": "sgd(lr = 0.1)", "zero": 1})
    asked = """
import os, signal, sys
class Asks:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGUSR1)
sys.meta_path.insert(0, Asks())
from shardlang.cli.start import main
sys.argv[1:] = ["check", "p.shard"]
main()
"""
    environment = {**os.environ, "PYTHONPATH": str(warm.ROOT)}
    done = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failure_forgets_nothing_that_was_asked(tmp_path: Path) -> None:
    """The launcher is asked, a rank dies, and what is started then saves."""
    fails = "import os, signal; os.path.exists('died') or (os.kill(os.getppid(), signal.SIGUSR1), "
    fails += "time.sleep(0.2), open('died', 'w'), os.kill(os.getpid(), signal.SIGKILL))"
    path = program(tmp_path / "run", fails)
    code, out, _ = finish(start(path, "--max-restarts", "1"))
    assert code == 75 and "saved after step" in out


def test_a_rank_that_has_just_ended_is_not_asked(tmp_path: Path) -> None:
    """It has been waited for, and its status is not yet written down when the signal comes."""
    gone = os.fork()
    if not gone:
        os._exit(0)
    os.waitpid(gone, 0)
    program = rt.Program("", "", 1, rt.Mesh(rank=1), [], rt.Source("random", batch=1, fields=[]), [])
    Watch(tmp_path, program, children=[Child(0, gone, -1)]).ask_to_save()
