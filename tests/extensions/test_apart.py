"""What the Python of an operator may do to the process that tries it: `shardc verify` says so, and tries the others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardlang.extensions import locks
from tests.cli.process import shardc

DECLARED = """\
operator {0}(x: [batch, d]) -> [batch, d] {{
  linear x
  flops batch * d
  python "my_ops.py": {0}
}}
"""
ENDS = {
    "import sys; sys.exit(4)": "SystemExit: 4",
    "import os; os._exit(0)": "exit code 0",
    "import os; os._exit(7)": "exit code 7",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "import ctypes; ctypes.string_at(0)": "SIGSEGV (signal 11)",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "SIGKILL (signal 9)",
}


def written(folder: Path, *names: str, python: str) -> None:
    (folder / "my_ops.shard").write_text("\n".join(DECLARED.format(name) for name in names))
    (folder / "my_ops.py").write_text(python)


@pytest.mark.parametrize("ends", ENDS)
def test_a_function_that_ends_the_process(ends: str, tmp_path: Path) -> None:
    written(tmp_path, "ends", "good", python=f"def ends(x):\n    {ends}\n\n\ndef good(x):\n    return 2 * x\n")
    done = shardc("verify", "my_ops.shard", folder=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    wanted = f"error[SH618]: `ends` is not what it is declared to be: it ends the process that calls it ({ENDS[ends]})"
    assert wanted in done.stderr
    assert list(json.loads((tmp_path / "my_ops.lock").read_text())["operators"]) == ["good"]


@pytest.mark.parametrize("ends", ENDS)
def test_a_file_that_ends_the_process(ends: str, tmp_path: Path) -> None:
    written(tmp_path, "good", python=f"{ends}\n\n\ndef good(x):\n    return 2 * x\n")
    done = shardc("verify", "my_ops.shard", folder=tmp_path)
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert "error[SH619]: the file cannot be loaded: " in done.stderr and ENDS[ends] in done.stderr
    assert re.search(r"--> my_ops\.py(:1)?$", done.stderr, re.M)
    assert not (tmp_path / "my_ops.lock").exists()


def test_a_split_that_ends_the_process_is_told_with_its_sizes(tmp_path: Path) -> None:
    body = "def ends(x):\n    import os\n    if x.shape[0] == 2:\n        os._exit(1)\n    return 2 * x\n"
    written(tmp_path, "ends", python=body)
    done = shardc("verify", "my_ops.shard", folder=tmp_path)
    assert done.returncode == 1 and "it ends the process that calls it (exit code 1)" in done.stderr
    assert "note: tried with batch = 4, d = 6" in done.stderr


def test_what_a_function_prints_is_no_part_of_the_json(tmp_path: Path) -> None:
    written(tmp_path, "loud", python="print('hello')\n\n\ndef loud(x):\n    print('again')\n    return 2 * x\n")
    done = shardc("verify", "my_ops.shard", "--json", folder=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["operators"][0]["ok"]
    assert "hello\n" in done.stderr


def test_operators_from_a_pipe_load_no_file(tmp_path: Path) -> None:
    written(tmp_path, "good", python="raise ValueError('this was run')\n")
    done = shardc("verify", "-", folder=tmp_path, input=DECLARED.format("good"))
    assert done.returncode == 1 and "this was run" not in done.stderr
    assert "error[SH611]: operator `good` is in `my_ops.py`, and a program from a pipe loads no file" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_ops.py", "my_ops.shard"]


def test_a_lock_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    written(tmp_path, "good", python="def good(x):\n    return 2 * x\n")
    (tmp_path / "my_ops.lock").write_text("version = 1\n[[package]]\n")
    done = shardc("verify", "my_ops.shard", folder=tmp_path)
    assert done.returncode == 2 and "error[SH512]: the lock of what was verified would replace" in done.stderr
    assert (tmp_path / "my_ops.lock").read_text() == "version = 1\n[[package]]\n"
    (tmp_path / "my_ops.lock").unlink()
    assert [shardc("verify", "my_ops.shard", folder=tmp_path).returncode for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("text", ["[" * 200_000, "\udcff", '{"shardlang": [1], "operators": [1]}', "[]", ""])
def test_a_damaged_lock_locks_nothing(text: str) -> None:
    assert locks.read(text) == {}


NEVER = "while True:\n        pass"


def test_a_function_that_never_ends_is_ended_and_told(tmp_path: Path) -> None:
    python = f"def endless(x):\n    {NEVER}\n\n\ndef good(x):\n    return 2 * x\n"
    written(tmp_path, "endless", "good", python=python)
    done = shardc("verify", "my_ops.shard", "--limit", "1.5", folder=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    fact = "`endless` is not what it is declared to be: it has not ended after 1.5 seconds"
    assert f"error[SH618]: {fact}" in done.stderr, done.stderr
    assert "help: if it is as slow as that, wait longer: `--limit 7.5`" in done.stderr
    assert "note: tried with batch = 4, d = 6" in done.stderr
    assert list(json.loads((tmp_path / "my_ops.lock").read_text())["operators"]) == ["good"]


def test_a_function_that_never_ends_on_a_part_is_told_too(tmp_path: Path) -> None:
    body = f"def endless(x):\n    if x.shape[0] == 3:\n        {NEVER}\n    return 2 * x\n".replace(
        "\n        pass", " pass"
    )
    written(tmp_path, "endless", python=body)
    done = shardc("verify", "my_ops.shard", "--limit", "1.5", folder=tmp_path)
    assert done.returncode == 1 and "it has not ended after 1.5 seconds" in done.stderr, done.stderr


def test_a_file_that_never_ends_is_told(tmp_path: Path) -> None:
    written(tmp_path, "good", python="while True:\n    pass\n")
    done = shardc("verify", "my_ops.shard", "--limit", "1.5", folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "error[SH619]: the file cannot be loaded: that has not ended after 1.5 seconds" in done.stderr
    assert "--limit 7.5" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ranks", "2", "--limit", "3"], "--limit is for operators that a file declares, without --ranks"),
        (["--steps", "3"], "--steps needs --ranks"),
        (["--simulated-only"], "--real/--simulated-only needs --ranks"),
    ],
)
def test_an_option_of_the_other_use_is_refused(words: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "net.shard").write_text("dim d = 2\n")
    done = shardc("verify", "net.shard", *words, folder=tmp_path)
    assert done.returncode == 2 and told in done.stderr, done.stderr


THREADS = """
import torch
from shardlang.interpret.trials.processes import child

torch.set_num_threads(2)
numbers = torch.arange(1 << 20, dtype=torch.float64)
numbers.exp()
print(child(lambda tell: tell(float((numbers + 1).sum())), 20.0))
"""


def test_a_process_does_not_wait_for_threads_that_torch_had_before_it() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True)
    assert done.stdout == f"([{float(sum(range(1, (1 << 20) + 1)))}], 0)\n", done.stderr
