"""A real case of each error of what users declare, and of what they take in: their functions, modules, checkpoints."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shardlang.diagnostics import explain_pages
from shardlang.extensions import loaded
from shardlang.extensions.locks import digest
from shardlang.importing import compare
from shardlang.importing.example import load
from shardlang.importing.imported import Wanted, import_module
from shardlang.runtime.data import agreed
from shardlang.runtime.dcp import foreign
from shardlang.runtime.state.own_optimizers import stepped
from shardlang.runtime.step import learning_rate
from shardlang.torch.place import Batch
from tests.importing import modules
from tests.mdtest import fences
from tests.texts.made import said, told

Patch = pytest.MonkeyPatch


def own(name: str, text: str) -> Any:
    """The module of a file with this text."""
    Path(name).write_text(text)
    return loaded.module(Path(name), digest(text))


def imported(code: str, patch: Patch) -> Iterator[str]:
    """What importing the modules says that the page of a code has."""
    for python in [text for _, language, _, text in fences(explain_pages.page(code)) if language == "python"]:
        Path("page.py").write_text(python, "utf-8")
        linecache.clearcache()
        patch.delitem(sys.modules, "page", raising=False)
        yield told(import_module, load("page.py:build"), Wanted("page:build", {}))
        sys.modules.pop("page", None)


sh600, sh601, sh602, sh603, sh604, sh605, sh606, sh608 = (
    lambda folder, patch, code=f"SH{number}": imported(code, patch)
    for number in (600, 601, 602, 603, 604, 605, 606, 608)
)


def sh607(folder: Path, patch: Patch) -> Iterator[str]:
    """The text becomes another one after it is made."""
    ours, twice = compare.ours, "relu(1.5 * fc1(x) - 0.5 * detach(fc1(x)))"
    patch.setattr(
        "shardlang.importing.attempt.ours", lambda text, *rest: ours(text.replace("relu(fc1(x))", twice), *rest)
    )
    yield told(import_module, modules.mlp, Wanted("modules:mlp", {}))


def sh613(folder: Path, patch: Patch) -> Iterator[str]:
    """Of two ranks; this one is the second."""
    rows = np.arange(12.0).reshape(3, 4)
    source = SimpleNamespace(
        name="Images", file=Path("my_data.py"), source=SimpleNamespace(fields=[SimpleNamespace(name="x")]),
        fetch=lambda epoch, numbers: {"x": rows},
    )  # fmt: skip
    source.afresh = lambda: source
    patch.setattr(agreed, "exchanged", lambda mine: [mine, [*mine[:-1], "other"]])
    yield told(agreed.agreed, source, 1, np.array([11, 520, 1209]))

    def rates(mine: Any) -> list[Any]:
        return [mine, "other" if isinstance(mine, str) else [*mine[:6], (0.21).hex(), *mine[7:]]]

    patch.setattr(learning_rate, "exchanged", rates)
    call = SimpleNamespace(name="mine", file="my_lr.py", found=lambda base: lambda step, total, lr: lr)
    schedule = SimpleNamespace(call=call, settings={})
    given = SimpleNamespace(base=Path())
    yield told(learning_rate.LearningRates._compared, given, schedule, 0.2, 1, 10)


def sh616(folder: Path, patch: Patch) -> Iterator[str]:
    Path("theirs").mkdir()
    Path("theirs", foreign.METADATA).write_bytes(b"cos\nsystem\n(S'rm x'\ntR.")
    yield told(foreign.Foreign, Path("theirs"))


RUNNING = """\
operator running(x: [batch, time]) -> [batch, time] {
  flops batch * time
  python "my_ops.py": running
}
"""
BY_NORM = """\
optimizer mine(lr: float) {
  needs elements
  python "my_opt.py": mine
}
"""
BY_NORM_PYTHON = """\
def mine(parameter, gradient, state, step, lr):
    return parameter - lr * gradient / gradient.norm(), state
"""


def sh618(folder: Path, patch: Patch) -> Iterator[str]:
    Path("my_ops.shard").write_text(RUNNING)
    Path("my_ops.py").write_text("def running(x):\n    return x.cumsum(1)\n")
    yield said("verify", "my_ops.shard")
    Path("my_opt.shard").write_text(BY_NORM)
    Path("my_opt.py").write_text(BY_NORM_PYTHON)
    yield said("verify", "my_opt.shard")


def sh619(folder: Path, patch: Patch) -> Iterator[str]:
    Path("my_ops.py").write_text("def running(x):\n    return x.cumsum(0)\n")
    yield told(loaded.module, Path("my_ops.py"), digest("def running(x):\n    return x.cumsum(1)\n"))
    yield told(own, "my_ops.py", "import torch\n\n\nSCALE = tensor(2.0)\n")


def sh620(folder: Path, patch: Patch) -> Iterator[str]:
    yield told(Batch(None, [{}, {}]).__getitem__, "x")


def sh621(folder: Path, patch: Patch) -> Iterator[str]:
    listed = own(
        "my_lr.py", "RATES = [0.1, 0.05, 0.01]\n\n\ndef listed(step, total, lr):\n    return RATES[step]\n"
    ).listed
    yield told(learning_rate.asked, listed, Path("my_lr.py"), 3, 3, 0.1, {})
    below = own("my_lr.py", "def falling(step, total, lr):\n    return lr * (1 - step / 50)\n").falling
    yield told(learning_rate.asked, below, Path("my_lr.py"), 51, 100, 0.1, {})


PART = """\
def mine(parameter, gradient, state, step, lr):
    return parameter - lr * gradient[:10], state
"""


def sh622(folder: Path, patch: Patch) -> Iterator[str]:
    mine, whole = own("my_opt.py", PART).mine, torch.zeros(64, 10)
    yield told(stepped, mine, Path("my_opt.py"), whole, whole, {}, 1, {"lr": 0.1})
