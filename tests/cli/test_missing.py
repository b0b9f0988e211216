"""Without the packages of training the compiler works, and the other commands say what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import NET, SHARDC

GONE = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)"
BROKEN = "raise ImportError('libcudart.so.12: cannot open shared object file', name=__name__)"


def told(folder: Path, packages: dict[str, str], *words: str) -> tuple[int, str]:
    """The exit code and the output of a command where importing these packages does so."""
    for name, text in packages.items():
        (folder / "packages" / name).mkdir(parents=True, exist_ok=True)
        (folder / "packages" / name / "__init__.py").write_text(text)
    (folder / "net.shard").write_text(NET)
    return started(folder, *SHARDC, *words)


def python(folder: Path, *words: str) -> tuple[int, str]:
    """Runs Python beside these packages."""
    return started(folder, sys.executable, *words)


def started(folder: Path, *command: str) -> tuple[int, str]:
    path = os.pathsep.join([str(folder / "packages"), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


AUTO = """\
use std.nn: MLP, Linear
use std.clusters: h100_pod
dim batch = 64, d = 256, ffn = 1024, classes = 16
model Net {
  layer a[4] = MLP(d, ffn)
  layer head = Linear(d, classes)
  forward(x: [batch, d]) -> [batch, classes] {
    return x |> a |> head
  }
}
strategy s {
  mesh a = auto, b = auto
  split auto over (a, b)
}
train {
  model = Net()
  data = random(x: [batch, d], y: i64[batch] < 16, batches = 4)
  loss = cross_entropy(model(x), y)
  optimizer = adam(lr = 0.01)
  steps = 4
}
"""
ALL = dict.fromkeys(("torch", "numpy", "safetensors", "highspy"), GONE)


@pytest.mark.parametrize(
    "words",
    [
        "check net.shard --ranks 2", "plan net.shard --ranks 2", "explain SH517", "fmt net.shard",
        "compile net.shard --ranks 2 -o out", "why net.shard train.loss --ranks 2",
        "diff net.shard net.shard --ranks 2", "report net.shard --ranks 2 -o page.html",
        "tune net.shard --ranks 2 --cluster std.clusters.h100_pod",
        "launch net.shard --ranks 2 --nodes 1 --to slurm -o job",
    ],
)  # fmt: skip
def test_the_compiler_needs_none_of_them(tmp_path: Path, words: str) -> None:
    code, text = told(tmp_path, ALL, *words.split())
    assert code == 0, text


@pytest.mark.parametrize(
    "words",
    [
        "run net.shard --ranks 2", "run net.shard --ranks 2 --simulate", "verify net.shard --ranks 2",
        "checkpoint show .", "import net.py:build -o other.shard", "calibrate -o machine.shard",
        "export w.st --map std.gpt2 --like . -o out", "convert . --to dcp -o out",
        "predict net.shard --ranks 2 --weights w.st --out w.npz --value out", "tokens net.shard -o text.bin",
    ],
)  # fmt: skip
def test_the_others_say_what_to_install(tmp_path: Path, words: str) -> None:
    (tmp_path / "w.st").touch()
    code, text = told(tmp_path, ALL, *words.split())
    assert code == 3 and 'help: `pip install "shardlang[train]"`' in text, text
    assert "error[SH517]: this command needs " in text and "which is not installed" in text


def test_a_package_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    code, text = told(tmp_path, {"torch": BROKEN}, "run", "net.shard", "--ranks", "2")
    assert code == 3 and "torch, which cannot be loaded: libcudart.so.12: cannot open shared object" in text, text


@pytest.mark.parametrize(("package", "said"), [(GONE, "is not installed"), (BROKEN, "cannot be loaded: libcudart")])
def test_a_solver_that_is_needed_and_missing(tmp_path: Path, package: str, said: str) -> None:
    (tmp_path / "auto.shard").write_text(AUTO)
    code, text = told(tmp_path, {"highspy": package}, "tune", "auto.shard", "--ranks", "8", "--strategy", "s")
    assert code in (1, 3) and "error[SH517]" in text and said in text, text
    assert '`pip install "shardlang[tune]"` installs' in text


@pytest.mark.parametrize(
    ("package", "why"), [(GONE, "is not installed"), (BROKEN, "cannot be loaded: libcudart")], ids=["missing", "broken"]
)
def test_an_emitted_program_says_what_to_install(tmp_path: Path, package: str, why: str) -> None:
    """Not whoever else imports the runtime: that is theirs to say."""
    assert told(tmp_path, {"torch": package}, "compile", "net.shard", "--ranks", "2", "-o", "out")[0] == 0
    code, text = python(tmp_path, "out/main.py")
    assert code == 3
    assert "Traceback" not in text, text
    assert text.startswith(f"error[SH517]: the program needs torch, which {why}")
    assert text.endswith('\nhelp: `pip install "shardlang[train]"` installs all that training needs\n')
    code, text = python(tmp_path, "-c", "from shardlang import runtime")
    assert code == 1
    assert "Traceback" in text and "SH517" not in text


def test_a_loop_of_ones_own_says_what_to_install(tmp_path: Path) -> None:
    for name in ALL:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(GONE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    script = "import shardlang; import shardlang.torch"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert "SH517" in done.stderr and '`pip install "shardlang[train]"`' in done.stderr
