"""A run that begins anew in a folder with checkpoints of an earlier one: it is refused, or removes them by
`--overwrite`, and then only once, however often its ranks are started.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shardlang.cli.main import run
from tests.cli.process import NET
from tests.runtime.apart import apart
from tests.runtime.test_launch import finish, start, write

pytestmark = pytest.mark.slow
KEPT = 'rt.Checkpoint(2, 0, "kept")'


def steps(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "kept").iterdir())


def test_a_second_run_is_refused_and_then_overwrites(tmp_path: Path) -> None:
    path = write(tmp_path, ranks=2, checkpoint=KEPT)
    assert finish(start(path))[0] == 0
    path.write_text(path.read_text().replace("steps=6", "steps=4"))
    code, out, err = finish(start(path, "--metrics", "figures.jsonl"))
    assert code == 3 and "step" not in out and not (tmp_path / "figures.jsonl").exists()
    assert err.startswith("error[SH512]: 3 checkpoints of an earlier run are here, the newest after step 6\n")
    assert f"  --> {tmp_path / 'kept'}\nhelp: --resume goes on from there; --overwrite removes what is here" in err
    assert steps(tmp_path) == ["step-2", "step-4", "step-6"]
    code, out, err = finish(start(path, "--overwrite"))
    assert (code, err) == (0, "") and "3 checkpoints of an earlier run removed from" in out
    assert steps(tmp_path) == ["step-2", "step-4"]


def test_a_run_that_is_started_again_overwrites_only_once(tmp_path: Path) -> None:
    """By itself, where one start of its ranks fails."""
    path = write(tmp_path, ranks=2, checkpoint=KEPT)
    assert finish(start(path))[0] == 0
    fails = "assert rt.random.KeyParts.step != 5 or os.path.exists('failed') or open('failed', 'w').close()"
    path.write_text(path.read_text().replace("    pass\n", f"    {fails}\n"))
    code, out, err = finish(start(path, "--overwrite", "--max-restarts", "1"))
    assert code == 0 and "the run is started again (1 of 1)" in err, err
    assert out.count("removed from") == 1 and "goes on after step" in out


def ended(ranks: list[subprocess.CompletedProcess[str]]) -> str:
    assert all(rank.returncode == 0 for rank in ranks), ranks
    return ranks[0].stdout


def test_ranks_that_torchrun_starts_again_overwrite_nothing(tmp_path: Path) -> None:
    """It gives them the same words. They go on from what the start before them has written."""
    path = str(write(tmp_path, ranks=2, checkpoint=KEPT))
    ended(apart(2, path, "--device", "cpu", folder=tmp_path))
    refused = apart(2, path, "--device", "cpu", folder=tmp_path)
    assert [rank.returncode for rank in refused] == [3, 3]
    assert "".join(rank.stderr for rank in refused).count("error[SH512]: 3 checkpoints of an earlier run are here") == 1
    assert "removed from" in ended(apart(2, path, "--device", "cpu", "--overwrite", folder=tmp_path))
    out = ended(apart(2, path, "--device", "cpu", "--overwrite", folder=tmp_path, again=1))
    assert "removed" not in out and "finished: " in out


def test_to_go_on_and_to_overwrite_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "--resume goes on from the checkpoints that --overwrite removes: leave one of them out"
    path = write(tmp_path, ranks=2, checkpoint=KEPT)
    code, _, err = finish(start(path, "--overwrite", "--resume"))
    assert code == 2 and told in err
    file = tmp_path / "net.shard"
    file.write_text(NET)
    assert run(["run", str(file), "--ranks", "1", "--overwrite", "--resume-anyway"]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert run(["run", str(file), "--ranks", "1", "--overwrite", "--simulate"]) == 2
    assert "neither write checkpoints nor go on from them: leave out" in capsys.readouterr().err
