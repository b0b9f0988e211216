"""Locks of what runs write: one run at a time, free once it has ended however it ends, and nothing left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shardlang.disk import locks, overwrite_guard, run_files
from shardlang.disk.locks import Claims, draft_of
from shardlang.disk.overwrite_guard import EMITTED, FIGURES, TOKENS, WEIGHTS
from shardlang.errors import RunError
from tests.emit.sources import emitted_files
from tests.runtime.test_launch import TORCHRUN, finish, left, start, write
from tests.waits import until

HOLD = r"""
import os, sys, time
from pathlib import Path
from shardlang.disk.locks import Claims
from shardlang.disk.overwrite_guard import FIGURES, TOKENS
claims = Claims()
claims.folder(Path("kept"), "checkpoints")
claims.lines(Path("m.jsonl"), FIGURES)
claims.file(Path("t.bin"), TOKENS)
os.fork()
os.write(1, b"held\n")
time.sleep(60)
"""


def claim_all() -> None:
    with Claims() as claims:
        claims.folder(Path("kept"), "checkpoints")
        claims.lines(Path("m.jsonl"), FIGURES)
        claims.file(Path("t.bin"), TOKENS)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_lock_goes_with_its_run(here: Path) -> None:
    claim_all()
    assert [path.name for path in here.rglob("*")] == ["kept"]
    with Claims() as outer:
        outer.folder(Path("kept"), "checkpoints")
        claim_all()  # who holds a place may name it again, and so does not give it back
        assert (here / "kept" / ".shardlang-lock").exists()
    assert [path.name for path in here.rglob("*")] == ["kept"]


def test_a_lock_on_a_full_disk_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with Claims() as claims, pytest.raises(RunError, match="logs cannot be written: No space left on device") as raised:
        claims.folder(Path("kept"), "logs")
    assert raised.value.code == "SH512" and not list((here / "kept").iterdir())
    monkeypatch.undo()
    monkeypatch.chdir(here)
    claim_all()


def test_two_runs_are_kept_apart_until_the_last_process_of_the_first_is_killed(here: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert other.stdout is not None
    assert other.stdout.readline() == other.stdout.readline() == "held\n"
    for place, claim in (
        ("kept", lambda claims: claims.folder(Path("kept"), "checkpoints")),
        ("m.jsonl", lambda claims: claims.lines(Path("m.jsonl"), FIGURES)),
        ("t.bin", lambda claims: claims.file(Path("t.bin"), TOKENS)),
    ):
        with pytest.raises(RunError, match="another run writes") as raised, Claims() as claims:
            claim(claims)
        assert (raised.value.code, Path(str(raised.value.file)).name) == ("SH513", place)
        assert place == "m.jsonl" or f": process {other.pid} on " in raised.value.message
    draft_of(here / "t.bin").write_text("half")
    forked = next(process for process in left(other.pid) if process != other.pid)
    other.kill()
    other.wait()
    with pytest.raises(RunError, match="another run writes"):
        claim_all()  # its rank is still there
    os.kill(forked, signal.SIGKILL)
    until(lambda: not left(other.pid))
    claim_all()
    assert sorted(path.name for path in here.rglob("*")) == ["kept", "m.jsonl"]


def test_a_lock_that_is_given_back_meanwhile_is_taken_anew(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was opened, and then went with the run that held it: a lock on what has no name would hold nothing."""
    lock, flock, gone = here / "kept" / ".shardlang-lock", locks.fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not gone:
            gone.append(lock.unlink())
        flock(descriptor, how)

    monkeypatch.setattr(locks.fcntl, "flock", late)
    with Claims() as claims:
        claims.folder(here / "kept", "checkpoints")
        assert lock.exists() and len(gone) == 1


def test_where_there_are_no_locks_it_is_told(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(descriptor: int, how: int) -> None:
        raise OSError(locks.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", lacking)
    with Claims() as claims:
        claims.folder(here / "kept", "checkpoints")
    assert "kept` is on a file system without locks" in capsys.readouterr().err


def test_an_empty_file_or_a_stream_may_be_written_to(here: Path) -> None:
    (here / "m.jsonl").touch()
    (here / ".t.bin.shardlang-lock").touch()
    os.mkfifo(here / "pipe")
    claim_all()
    with Claims() as claims:
        assert claims.lines(Path("/dev/null"), FIGURES) == Path("/dev/null")
        assert claims.lines(here / "pipe", FIGURES) == here / "pipe"
    assert sorted(path.name for path in here.iterdir()) == [".t.bin.shardlang-lock", "kept", "m.jsonl", "pipe"]


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ('{"step": 1, "epoch": 1, "loss": 0.5, "step_ms": 1.0}\n{"epoch": 1, "eval.loss": 0.5}\n', True),
        ('{"step": 1, "epoch": 1, "loss": 0.5, "step_ms": 1.0}\n{"step": 2, "ep', True),
        ('{"step": 1, "epoch": 1, "loss": 0.5, "step_ms": 1.0}\nmine\n', False),
        ('{"step": 1, "prompt": "x"}\n', False),
        ('{"epoch": 1, "accuracy": 0.5}\n', False),
        ("step,loss\n", False),
    ],
)
def test_figures_are_told_from_other_lines(here: Path, text: str, own: bool) -> None:
    (here / "m.jsonl").write_text(text)
    assert overwrite_guard.FIGURES.is_own(here / "m.jsonl") is own


def test_every_emitted_file_says_who_wrote_it(here: Path) -> None:
    for name in ("quickstart", "digits"):
        text = (Path(__file__).parents[2] / "examples" / f"{name}.shard").read_text()
        for file, content in emitted_files(text, 8).items():
            (here / file).write_text(content)
            assert overwrite_guard.is_own(here / file, EMITTED), (name, file)


def test_old_log_folders_go_but_not_what_a_user_put_there(here: Path) -> None:
    def one() -> Path:
        with Claims() as claims:
            folder = run_files.claim(claims, 1, None, None, None, {"main.py": text, "stage1.py": text}).log_dir
            (folder / "rank-0.log").write_text(f"{overwrite_guard.LOG_MARK}\n")
            for name in ("main.py", "stage1.py"):
                (folder / name).write_text(text)
        return folder

    def mine(name: str, text: str) -> None:
        (here / "shardlang-logs" / name).parent.mkdir(exist_ok=True, parents=True)
        (here / "shardlang-logs" / name).write_text(text)

    text = f'"""A program.\n\n{overwrite_guard.EMITTED_MARK}\n"""\n'
    mine("run-1/main.py", text)
    (here / "shardlang-logs" / "run-2").mkdir()
    for _ in range(7):
        one()
    changed = {
        "run-1/main.py": text, "run-4/notes.txt": "mine", "run-5/edited.py": text, "run-6/main.py": f"{text}mine = 1\n",
        "run-7/mine.log": f"{overwrite_guard.LOG_MARK}\n", "run-8/.shardlang-run": "mine\n",
    }  # fmt: skip
    for name, content in changed.items():
        mine(name, content)
    with Claims() as claims:
        claims.folder(here / "shardlang-logs" / "run-3", "logs")
        held = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True)
    assert held.stdout == ""
    names = {path.name for path in (here / "shardlang-logs").iterdir()}
    assert {name: (here / "shardlang-logs" / name).read_text() for name in changed} == changed
    assert all((here / "shardlang-logs" / f"run-{n}" / "rank-0.log").exists() for n in range(3, 9))
    newest = {f"run-{n}" for n in range(20, 40)}
    assert names == {"latest", *(f"run-{n}" for n in range(1, 9)), *newest}
    assert os.readlink(here / "shardlang-logs" / "latest") == "run-39"
    (here / "shardlang-logs" / "latest").unlink()
    (here / "shardlang-logs" / "latest").write_text("mine")
    assert one().name == "run-40"
    assert (here / "shardlang-logs" / "latest").read_text() == "mine"


def test_what_the_flight_recorder_wrote_goes_with_its_log_folder(here: Path) -> None:
    """A whole file as torch writes it, and an empty one of a rank that was ended before; not another under its name."""
    written = torch._C._distributed_c10d._dump_fr_trace()
    logs = here / "shardlang-logs"
    for number, contents in enumerate(((written, b""), (b"mine",), (written, b"mine")), 1):
        with Claims() as claims:
            folder = run_files.claim(claims, 1, None, None, None).log_dir
        assert folder.name == f"run-{number}"
        for rank, content in enumerate(contents):
            (folder / f"nccl-rank-{rank}").write_bytes(content)
    subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True)
    left = {f"run-{number}" for number in (1, 2, 3) if (logs / f"run-{number}").exists()}
    assert left == {"run-2", "run-3"} and (logs / "run-3" / "nccl-rank-0").read_bytes() == written


AGAIN = """
from shardlang.disk import run_files
from shardlang.disk import overwrite_guard
from shardlang.disk.locks import Claims
for _ in range(30):
    with Claims() as claims:
        folder = run_files.claim(claims, 1, None, None, None).log_dir
        (folder / "rank-0.log").write_text(overwrite_guard.LOG_MARK)
"""


@pytest.mark.parametrize("name", ["w.safetensors", "t.bin"])
def test_a_folder_that_cannot_be_written_to_is_told(here: Path, name: str) -> None:
    with pytest.raises(RunError, match="cannot be written") as raised, Claims() as claims:
        claims.file(here / "nowhere" / name, WEIGHTS)
    assert raised.value.code == "SH512"


@pytest.mark.parametrize(
    ("metrics", "weights", "what"), [("logs/rank-0.log", None, "figures"), (None, "logs/rank-1.log", "saved weights")]
)
def test_a_log_and_another_file_are_two(here: Path, metrics: str | None, weights: str | None, what: str) -> None:
    (here / "logs").mkdir()
    given = [Path(name) if name is not None else None for name in (metrics, weights)]
    with pytest.raises(RunError, match=f"both a rank's log and {what} here"), Claims() as claims:
        run_files.claim(claims, 2, Path("logs"), *given)


@pytest.mark.slow
def test_two_runs_of_one_program_and_one_that_goes_on_after_a_kill(tmp_path: Path) -> None:
    """Forked and under torchrun: who comes second is refused, until the first is killed."""
    kept = 'rt.Checkpoint(1, 2, "kept")'
    path = write(tmp_path, ranks=2, line="time.sleep(0.02)", steps=100_000, checkpoint=kept)
    first = start(path)
    until((tmp_path / "kept" / "step-3").exists, lambda: first.poll() is None)
    for launcher, what, place in (((), "logs", "logs"), ((*TORCHRUN, "2"), "checkpoints", "kept")):
        code, _, err = finish(start(path, launcher=launcher))
        assert code != 0
        assert f"error[SH513]: another run writes {what} there: process {first.pid} on " in err, err
        assert f"--> {tmp_path}/{place}" in err
    first.kill()
    first.communicate()
    until(lambda: not left(first.pid))
    path.write_text(path.read_text().replace("steps=100000", "steps=3"))
    code, _, err = finish(start(path, "--resume"))
    assert (code, err) == (0, "")
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert all(name.startswith("step-") for name in names), names
