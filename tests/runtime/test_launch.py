"""Starting and ending ranks: what a run prints, and that it ends early, naming rank, place and log, with no process
left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.apart import apart
from tests.waits import until
from tests.warm import Warm

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import os, signal, time
import torch
from shardlang import runtime as rt

mesh = rt.Mesh(dp={ranks})


def forward(p, x, label):
    # small.shard:7  h = x @ w
    h = x @ p.w
    # small.shard:8  {cited}
    {line}
    return (h - label).square().sum() / 8, {{}}


program = rt.Program(
    name="small.shard", strategy="", ranks={ranks}, mesh=mesh, groups=[("dp",)],
    parameters=[rt.Parameter("w", (4, 2), ("normal", 0.1), reduce="dp")],
    data=rt.Source({source}, batch=8, fields=[
        rt.Field("x", "f32", (8, 4), cut={{0: "dp"}}),
        rt.Field("label", "f32", (8, 2), cut={{0: "dp"}})], {arguments}),
    optimizers=[rt.Optimizer("sgd", lr={lr})],
    forward=forward, loss_pending=("dp",), steps={steps}, checkpoint={checkpoint})
if __name__ == "__main__":
    rt.main(program)
"""


def write(
    folder: Path,
    ranks: int = 3,
    line: str = "pass",
    cited: str = "nothing",
    source: str = '"random"',
    arguments: str = "batches=4",
    lr: float = 0.1,
    steps: int = 6,
    checkpoint: str = "None",
) -> Path:
    # Batch 8 over 3 ranks: 3, 3, 2.
    path = folder / "main.py"
    given = dict(line=line, cited=cited, source=source, arguments=arguments, lr=lr, steps=steps, checkpoint=checkpoint)
    path.write_text(PROGRAM.format(ranks=ranks, **given))
    return path


def start(
    path: Path, *arguments: str, launcher: tuple[str, ...] = (), ignoring: tuple[signal.Signals, ...] = ()
) -> subprocess.Popen[str]:
    """ignoring: as `nohup` does."""
    command = [*(launcher or (sys.executable,)), str(path), "--device", "cpu", *arguments]
    if not launcher:
        command += ["--log-dir", str(path.parent / "logs")]
    how: dict[str, Any] = dict(
        cwd=path.parent, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(_temporary(path.parent))}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    if not ignoring:
        return Warm(command, **how)
    ignore = lambda: [signal.signal(number, signal.SIG_IGN) for number in ignoring] and None  # noqa: E731
    return subprocess.Popen(command, preexec_fn=ignore, **how)


def _temporary(folder: Path) -> Path:
    """Where a run has its temporary folders: none is left when it is over."""
    (folder / "temporary").mkdir(exist_ok=True)
    return folder / "temporary"


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate()
    assert left(process.pid) == [], "processes are left behind"
    return process.returncode, out, err


def left(session: int) -> list[int]:
    """Processes of a session that are still alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _session(entry) == session:
            found.append(int(entry.name))
    return found


def _session(entry: Path) -> int:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] == "Z" else int(fields[3])


def test_a_run_ends_well_with_figures_logs_and_weights(tmp_path: Path) -> None:
    process = start(write(tmp_path), "--metrics", "m.jsonl", "--save-weights", "w.safetensors")
    code, out, err = finish(process)
    assert (code, err) == (0, "")
    assert "step 6/6" in out
    records = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5, 6]
    assert [r["epoch"] for r in records] == [1, 1, 1, 1, 2, 2]
    assert all(set(r) == {"step", "epoch", "loss", "lr", "grad_norm", "step_ms"} for r in records)
    assert records[-1]["loss"] < records[0]["loss"]
    files = [f"rank-{rank}.{what}" for rank in range(3) for what in ("collectives", "log")]
    assert sorted(p.name for p in (tmp_path / "logs").iterdir()) == files
    from safetensors.numpy import load_file

    assert load_file(tmp_path / "w.safetensors")["w"].shape == (4, 2)


FULL = "os.dup2(os.open('/dev/full', os.O_WRONLY), 2) and os.dup2(2, 1)"
UNLOGGED = "lacks what could not be written: No space left on device"


def test_a_traceback_that_the_log_has_no_room_for_is_told(tmp_path: Path) -> None:
    line = f"h = h if mesh.dp.index != 1 else {FULL} and h @ p.w"
    code, _, err = finish(start(write(tmp_path, line=line)))
    assert code == 3 and err.count("error[") == 1
    assert "error[SH501]: rank 1 failed: RuntimeError: mat1 and mat2" in err
    assert "Traceback (most recent call last):\n" in err and "in forward" in err
    assert err.count("warning: ") == err.count(f"warning: the log of rank 1 {UNLOGGED} ({tmp_path}/logs/rank-1.") == 1


def test_a_log_that_lacks_lines_of_a_run_that_ends_well_is_told_once(tmp_path: Path) -> None:
    line = f"print('lost') if mesh.dp.index == 0 else {FULL} and print('lost')"
    code, _, err = finish(start(write(tmp_path, line=line)))
    log = tmp_path / "logs" / "rank-1.log"
    assert (code, err) == (0, f"warning: the log of 2 ranks, of rank 1 first, {UNLOGGED} ({log})\n")
    assert "lost" in (tmp_path / "logs" / "rank-0.log").read_text() and "lost" not in log.read_text()


def test_lines_of_steps_that_a_full_disk_leaves_out_end_no_run(tmp_path: Path) -> None:
    """Those in a rank's log, and those on the standard output, here one whose reader is gone."""
    path = write(tmp_path, ranks=2, line=f"{FULL} if mesh.dp.index == 1 else 0")
    path.write_text(path.read_text().replace("checkpoint=None", "log={'steps': 1}"))
    process = start(path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err, code = process.stderr.read(), process.wait()
    log = tmp_path / "logs" / "rank-1.log"
    assert (code, err) == (0, f"warning: the log of rank 1 {UNLOGGED} ({log})\n")
    lacks = "not all that the run tells could be written: Broken pipe"
    assert (tmp_path / "logs" / "rank-0.log").read_text().splitlines()[-1] == lacks


def test_a_rank_that_cannot_begin_its_log_says_so(tmp_path: Path) -> None:
    """It runs nothing of the process that it was forked from."""
    path = write(tmp_path)
    text = """
write = os.write
def full(descriptor, data):
    if data.startswith(b"A log of shardlang"):
        raise OSError(28, "No space left on device")
    return write(descriptor, data)
os.write = full
"""
    path.write_text(path.read_text().replace("\nmesh = ", f"{text}\nmesh = ", 1))
    code, _, err = finish(start(path))
    assert code == 3 and "Traceback" not in err and err.count("error[") == 1
    assert "error[SH512]: a rank's log cannot be written: No space left on device" in err
    assert "help: --log-dir DIR, another folder" in err


def test_an_exception_names_rank_place_and_log(tmp_path: Path) -> None:
    line = "h = h @ p.w if mesh.dp.index == 1 and rt.random.KeyParts.step == 3 else h"
    code, _, err = finish(start(write(tmp_path, line=line, cited="y = h @ w", steps=1000)))
    assert code == 3
    assert "error[SH501]: rank 1 failed: RuntimeError: mat1 and mat2 shapes cannot be multiplied" in err
    assert "--> small.shard:8  y = h @ w" in err
    assert f"in: {line}" in err
    assert f"log: {tmp_path}/logs/rank-1.log" in err
    assert "Traceback" in (tmp_path / "logs" / "rank-1.log").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--max-restarts", "-1"), "--max-restarts is a whole number, at least 0"),
        *(
            (("--stall-timeout", text), "--stall-timeout is a number of seconds above 0")
            for text in ("nan", "inf", "0")
        ),
    ],
)
def test_numbers_of_a_compiled_program_are_in_their_range(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    code, out, err = finish(start(write(tmp_path), *words))
    assert (code, out) == (2, "") and err.endswith(f"error: {told}\n")


@pytest.mark.parametrize(("how", "text"), [("SIGKILL", "was killed by SIGKILL"), ("exit", "ended with exit code 7")])
def test_a_rank_that_dies_without_a_word(tmp_path: Path, how: str, text: str) -> None:
    act = "os._exit(7)" if how == "exit" else f"os.kill(os.getpid(), signal.{how})"
    line = f"{act} if mesh.dp.index == 2 and rt.random.KeyParts.step == 3 else None"
    code, _, err = finish(start(write(tmp_path, line=line, steps=10_000)))
    assert code == 3
    assert f"error[SH501]: rank 2 {text}" in err
    assert "rank-2.log" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_ranks(tmp_path: Path, number: signal.Signals) -> None:
    process = start(write(tmp_path, line="time.sleep(0.01)", steps=100_000), "--metrics", "m.jsonl")
    after_steps(process, tmp_path / "m.jsonl")
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    code, _, err = finish(process)
    assert code == 3
    assert f"the run was ended by {number.name}" in err


def test_a_closed_terminal_does_not_end_what_nohup_started(tmp_path: Path) -> None:
    """SIGHUP that was ignored at the start stays so, in the ranks too; other signals are not."""
    path = write(tmp_path, ranks=2, line="time.sleep(0.01)", steps=100_000)
    process = start(path, "--metrics", "m.jsonl", ignoring=(signal.SIGHUP,))
    after_steps(process, tmp_path / "m.jsonl")
    os.killpg(process.pid, signal.SIGHUP)
    lines = (tmp_path / "m.jsonl").read_text().count("\n")
    until(lambda: (tmp_path / "m.jsonl").read_text().count("\n") >= lines + 50, lambda: process.poll() is None)
    process.terminate()
    code, _, err = finish(process)
    assert (code, err) == (3, "\nthe run was ended by SIGTERM\n")


@pytest.mark.parametrize("pause", [0.0, 0.002, 0.02])
def test_further_signals_end_it_at_once(tmp_path: Path, pause: float) -> None:
    """While a run ends, any number more may come."""
    process = start(write(tmp_path, ranks=2, line="time.sleep(0.01)", steps=100_000), "--metrics", "m.jsonl")
    after_steps(process, tmp_path / "m.jsonl")
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        if not process.poll():
            process.send_signal(number)
        time.sleep(pause)
    code, _, err = finish(process)
    assert code == 3
    assert err in ("", "\nthe run was ended by SIGINT\n")
    assert list(_temporary(tmp_path).iterdir()) == []
    assert not [path for path in tmp_path.rglob(".*") if "lock" in path.name]


def test_ranks_die_with_their_parent(tmp_path: Path) -> None:
    process = start(write(tmp_path, line="time.sleep(0.01)", steps=100_000), "--metrics", "m.jsonl")
    after_steps(process, tmp_path / "m.jsonl")
    process.kill()
    process.wait()
    until(lambda: not left(process.pid))
    process.communicate()


def after_steps(process: subprocess.Popen[str], metrics: Path, count: int = 4) -> None:
    """Waits until the run has made so many steps."""
    until(lambda: metrics.exists() and metrics.read_text().count("\n") >= count, lambda: process.poll() is None)


def test_a_loss_that_is_not_finite_names_the_step(tmp_path: Path) -> None:
    line = "h = h * (float('nan') if rt.random.KeyParts.step == 2 else 1.0)"
    code, _, err = finish(start(write(tmp_path, line=line)))
    assert code == 3
    assert err.startswith("error[SH506]: the loss is nan at step 2 (epoch 1)")


def test_mistakes_of_the_data_are_told_once(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2,3,4,5,6\n1,2,three,4,5,6\n")
    path = write(tmp_path, source='"csv"', arguments='path="x.csv"')
    code, _, err = finish(start(path))
    assert code == 3
    assert err.startswith(f"error[SH502]: value 3 is 'three', which is no number\n  --> {tmp_path}/x.csv:2\nhelp: ")
    assert err.count("\n") == 3
    (tmp_path / "x.csv").write_text("1,2,3,4,5,6\n" * 7)
    code, _, err = finish(start(path))
    assert code == 3
    fact = "an epoch has no step: the source has 7 examples, and a batch is 8"
    assert err.startswith(f"error[SH505]: {fact}\n  --> {tmp_path}/x.csv\nhelp: ")


def test_weights_that_are_missing_are_told_before_ranks_start(tmp_path: Path) -> None:
    path = write(tmp_path, checkpoint='None, init=rt.Safetensors("nett.safetensors")')
    (tmp_path / "net.safetensors").touch()
    code, _, err = finish(start(path))
    said = f"error[SH504]: the weights are missing\n  --> {tmp_path}/nett.safetensors"
    assert (code, err) == (3, f"{said}\nhelp: did you mean `net.safetensors`?\n")


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def test_the_same_file_runs_under_torchrun(tmp_path: Path) -> None:
    path = write(tmp_path, ranks=2)
    code, _, _ = finish(start(path, "--metrics", "torchrun.jsonl", launcher=(*TORCHRUN, "2")))
    assert code == 0
    assert finish(start(path, "--metrics", "forked.jsonl"))[0] == 0
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("torchrun", "forked")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 6


def test_a_failed_rank_does_not_wait_for_its_groups_to_end(tmp_path: Path) -> None:
    """To give up a group may wait for collectives of others, which wait for this rank: NCCL's does."""
    blocks = "torch.distributed.destroy_process_group = lambda *_: time.sleep(600)"
    path = write(tmp_path, ranks=2, line=f"{blocks}; (mesh.dp.index and 1 / 0)")
    ended = apart(2, str(path), "--device", "cpu", folder=tmp_path)
    assert all(rank.returncode for rank in ended)
    assert "".join(rank.stderr for rank in ended).count("error[SH501]: rank 1 failed: ZeroDivisionError") == 1


def test_the_wrong_number_of_ranks_is_refused(tmp_path: Path) -> None:
    """The first to see it says it: the others may be ended before they have come so far."""
    path = write(tmp_path, ranks=3)
    late = 'if __name__ == "__main__":\n    time.sleep(5.0 if os.environ["RANK"] == "0" else 0.0)'
    path.write_text(path.read_text().replace('if __name__ == "__main__":', late))
    code, _, err = finish(start(path, launcher=(*TORCHRUN, "2")))
    assert code != 0
    assert err.count("error[SH503]: the program is laid out for 3 ranks and was started on 2") == 1
