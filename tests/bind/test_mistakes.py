"""Mistakes in a loop of the user's own are told, with the user's numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardlang
from shardlang.torch import NotElementwise, RankError, ShardModule, bind, launch

ROOT = Path(__file__).parent.parent.parent
DIGITS = ROOT / "examples" / "digits.shard"
ONE = shardlang.compile(DIGITS, ranks=1)
TWO = shardlang.compile(DIGITS, ranks=2)


def batch(**other: Any) -> dict[str, Any]:
    return {"image": torch.rand(64, 64), "label": torch.arange(64) % 10, **other}


def told(call: Callable[[], Any]) -> str:
    """What an exception says, after its kind."""
    try:
        found = call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"no mistake: {found}")


def on_one(mistakes: Callable[[ShardModule], list[str]]) -> list[str]:
    """What a rank alone is told of its mistakes."""
    return launch(lambda: mistakes(bind(ONE)), ranks=1)[0]


def test_batches() -> None:
    def mistakes(net: ShardModule) -> list[str]:
        label = torch.arange(64) % 10
        label[3] = 10
        return [
            told(lambda: net.place(batch(image=torch.rand(64, 63)))),
            told(lambda: net.place(batch(image=torch.rand(32, 64)))),
            told(lambda: net.place(batch(image=np.zeros((64, 64), np.uint8)))),
            told(lambda: net.place(batch(label=torch.rand(64)))),
            told(lambda: net.place(batch(label=label))),
            told(lambda: net.place(batch(image="cat.png"))),
            told(lambda: net.place(batch(img=torch.rand(64, 64)))),
            told(lambda: net.place({"image": torch.rand(64, 64)})),
            told(lambda: net.place([torch.rand(64, 64)])),  # type: ignore[arg-type]
        ]

    assert on_one(mistakes) == [
        "ValueError: `image` is [64, 63], and the program takes [64, 64]",
        "ValueError: `image` is [32, 64], and the program takes [64, 64]",
        "TypeError: `image` is uint8, and the program takes float32",
        "TypeError: `label` is float32, and the program takes int64",
        "ValueError: `label` is 10 at [3], and has to be from 0 to 9",
        "TypeError: `image` is no tensor: new(): invalid data type 'str'",
        "ValueError: the batch has `img`, and the program takes `image`, `label`",
        "ValueError: the batch lacks `label`; the program takes `image`, `label`",
        "TypeError: a batch is a mapping from the names of fields, not list",
    ]


def test_a_part_has_the_shape_of_a_part() -> None:
    def part() -> str:
        return told(lambda: bind(TWO).place(batch(), whole=False))

    assert launch(part, ranks=2) == ["ValueError: `image` is [64, 64], and this rank's part is [32, 64]"] * 2


def test_the_order_of_calls() -> None:
    def mistakes(net: ShardModule) -> list[str]:
        early = [told(lambda: net.clip(1.0)), told(net.stepped)]
        given, other = net.place(batch()), bind(ONE)
        early += [told(lambda: net.step(batch())), told(lambda: other.step(given))]  # type: ignore[arg-type]
        net.step(given)
        late = [told(lambda: net.step(given)), told(lambda: net(**given).backward()), told(lambda: net.clip(0.0))]
        net.stepped()
        return [*early, *late, told(net.stepped)]

    loop = "the loop is net.step(..), optimizer.step(), net.stepped()"
    assert on_one(mistakes) == [
        "RuntimeError: `clip` is called, and no step has been since the beginning",
        "RuntimeError: `stepped` is called, and no step has been since the beginning",
        "TypeError: a step takes what `place` of this module gives, not dict",
        "TypeError: a step takes what `place` of this module gives, not what another one gives",
        f"RuntimeError: `step` is called again after step 1, and `stepped` was not: {loop}",
        f"RuntimeError: `backward` is called again after step 1, and `stepped` was not: {loop}",
        "ValueError: the norm is a number above 0, not 0.0",
        "RuntimeError: `stepped` is called, and no step has been since step 1",
    ]


def test_what_a_bound_module_does_not_do() -> None:
    def mistakes(net: ShardModule) -> list[str]:
        return [
            told(net.half), told(net.eval), told(lambda: net.requires_grad_(False)),
            told(lambda: net.value("up.wight")),
            told(lambda: net.load_state_dict({**net.state_dict(), "up.bias": torch.zeros(3)})),
            told(lambda: net.load_state_dict({"up.bias": torch.zeros(128), "x": torch.zeros(1)})),
            told(lambda: bind(ONE, device="meta")), told(lambda: bind(ONE, device="cuda")),
            told(lambda: net.batches(0)),
        ]  # fmt: skip

    assert on_one(mistakes) == [
        "TypeError: a bound program stays on its device and in its types: bind(.., device=..), and `precision`",
        "TypeError: a step always trains: net.evaluate(batches) computes what `eval` says, without dropout",
        "TypeError: `freeze at SELECTOR` in the program says what is not trained",
        "ValueError: there is no parameter or state `up.wight`; did you mean `up.weight`?",
        "RuntimeError: the state does not fit: `up.bias` is [3] there and [128] here",
        "RuntimeError: the state does not fit: `down.bias` is not there, nor 2 more; `x` is not of this program",
        "ValueError: a program has been bound in this process on cpu; no other can be on meta",
        "ValueError: a program has been bound in this process on cpu; no other can be on cuda",
        "ValueError: epochs are numbered from 1, and this is 0",
    ]


def test_what_is_bound(tmp_path: Path) -> None:
    def mistakes() -> list[str]:
        return [
            told(lambda: bind(tmp_path)), told(lambda: bind(DIGITS.read_text)),  # type: ignore[arg-type]
            told(lambda: bind(ONE, weights="w", resume="c")), told(lambda: bind(TWO)),
            told(lambda: bind(ONE, weights=tmp_path / "no.safetensors")), told(lambda: bind(ONE, resume=tmp_path)),
            told(lambda: bind(ONE, device="mps")),
        ]  # fmt: skip

    compiled = "help: shardlang.compile(..).write(folder), or shardc compile FILE --ranks N -o FOLDER"
    ranks = "help: shardlang.compile(..., ranks=1), or 2 ranks by launch(function, ranks=2) or torchrun"
    assert launch(mistakes, ranks=1)[0] == [
        f"RunError: error[SH503]: there is no compiled program\n  --> {tmp_path}/main.py\n{compiled}",
        "TypeError: what is bound is a Compiled or its folder, not method",
        "ValueError: a program begins with `weights` or goes on by `resume`, not both",
        f"RunError: error[SH503]: the program is laid out for 2 ranks and is bound on 1\n{ranks}",
        f"RunError: error[SH504]: the weights are missing\n  --> {tmp_path}/no.safetensors",
        f"RunError: error[SH508]: there is no checkpoint to go on from\n  --> {tmp_path}\n"
        "help: name a folder `step-N`, in which an `index.json` is, or a folder of such folders",
        "ValueError: a program has been bound in this process on cpu; no other can be on mps",
    ]


def test_data_lie_beside_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for `shardc run`, wherever the loop is started."""
    (tmp_path / "net").mkdir()
    (tmp_path / "elsewhere").mkdir()
    np.savez(tmp_path / "net/train.npz", image=np.zeros((64, 64), np.float32), label=np.zeros(64, np.int64))
    fields = "image: [batch, pixels], label: i64[batch] < classes"
    data = f'numpy("train.npz", {fields})'
    text = DIGITS.read_text().replace('data = digits(split = "train", batch = batch)', f"data = {data}")
    (tmp_path / "net/net.shard").write_text(text.replace('eval = digits(split = "test", batch = batch)', ""))
    monkeypatch.chdir(tmp_path)
    made = shardlang.compile("net/net.shard", ranks=1)
    monkeypatch.chdir("elsewhere")
    assert launch(lambda: len(list(bind(made).batches(1))), ranks=1) == [1]
    (missing,) = launch(lambda: told(lambda: next(bind(made, base=tmp_path).batches(1))), ranks=1)
    assert missing.startswith(f"RunError: error[SH502]: the data file is missing\n  --> {tmp_path}/train.npz")


@pytest.mark.parametrize("setting", ["split batch over dp\n  microbatches 2", "stages over dp {\n 0: up\n 1: down\n }"])
def test_no_single_forward_pass(setting: str) -> None:
    text = DIGITS.read_text() + "strategy other {\n  mesh dp = 2\n  " + setting + "\n  microbatches 2\n}\n"
    text = text.replace("microbatches 2\n  microbatches 2", "microbatches 2")
    made = shardlang.compile(shardlang.source(text), ranks=2, strategy="other")

    def forward() -> str:
        net = bind(made)
        return told(lambda: net.forward(**batch()))

    by = "stages" if "stages" in setting else "microbatches"
    expected = f"RunError: error[SH620]: the program computes a step by {by}, so there is no single forward pass\n"
    assert launch(forward, ranks=2) == [expected + "help: net.step(net.place(batch)), which runs all of a step"] * 2


class OfRows(torch.optim.Optimizer):
    """Divides a gradient by the norm of its row."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each in self.param_groups[0]["params"]:
            each -= each.grad / each.grad.norm(dim=-1, keepdim=True)


def test_optimizers_that_need_whole_matrices() -> None:
    def mistakes(net: ShardModule) -> list[str]:
        for good in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop,
                     torch.optim.NAdam, torch.optim.Adamax):  # fmt: skip
            net.optimizer(good, lr=0.1)
        return [
            told(lambda: net.optimizer(torch.optim.Adafactor, lr=0.1)), told(lambda: net.optimizer(torch.optim.Muon)),
            told(lambda: net.optimizer(torch.optim.LBFGS)), told(lambda: net.optimizer(torch.optim.SGD, rate=0.1)),
            told(lambda: net.optimizer(torch.optim.SGD, at=["**.wight"])),
            told(lambda: net.optimizer(torch.optim.SGD, at="**.weight")),
            told(lambda: net.optimizer(OfRows)),
        ]  # fmt: skip

    found = on_one(mistakes)
    assert found[0].startswith("NotElementwise: Adafactor needs whole matrices: on a matrix of 6 x 4 numbers its steps")
    assert found[1].startswith("NotElementwise: Muon needs whole matrices")
    assert found[2].startswith("NotElementwise: LBFGS does not step by gradients alone: ")
    assert "unexpected keyword argument 'rate'" in found[3]
    there = "there are `up.weight`, `up.bias`, `down.weight`, `down.bias`"
    assert found[4] == f"ValueError: `**.wight` selects no parameter; {there}"
    assert found[5] == "TypeError: `at` is a list of selectors: ['**.weight']"
    assert found[6].startswith("NotElementwise: OfRows needs whole matrices") and "parts of its columns" in found[6]
    assert issubclass(NotElementwise, ValueError)


def test_a_rank_that_fails_is_named() -> None:
    def fails() -> None:
        net = bind(TWO)
        if net.rank == 1:
            raise KeyError("missing")
        net.step(net.place(batch()))["loss"]

    with pytest.raises(RankError, match="rank 1 failed: KeyError: 'missing'") as found:
        launch(fails, ranks=2)
    assert found.value.rank == 1
    assert 'raise KeyError("missing")' in found.value.traceback and found.value.traceback in str(found.value) + "\n"


def test_a_rank_that_dies_is_named() -> None:
    def dies(number: int) -> int:
        net = bind(TWO)
        if net.rank == 1:
            os.kill(os.getpid(), number)
        return net.step(net.place(batch()))["loss"] and 1

    with pytest.raises(RankError, match=r"^rank 1 was killed by SIGKILL$"):
        launch(dies, signal.SIGKILL, ranks=2)
    with pytest.raises(RankError, match=r"^rank 0 failed: SystemExit: 4\n"):
        launch(sys.exit, 4, ranks=1)
    with pytest.raises(RankError, match=r"^rank 0 ended with exit code 5$"):
        launch(os._exit, 5, ranks=1)


def test_ctrl_c_ends_all_ranks(tmp_path: Path) -> None:
    def waits(number: int) -> None:
        net = bind(TWO)
        (tmp_path / f"{net.rank} {os.getpid()}").touch()
        if net.rank == number:
            os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        launch(waits, 0, ranks=2)
    pids = [path.name.split()[1] for path in tmp_path.iterdir()]
    assert pids and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_cannot_be_launched() -> None:
    with pytest.raises(RankError, match=r"PicklingError|Can't pickle"):
        launch(lambda: lambda: 1, ranks=1)
    assert told(lambda: launch(3, ranks=1)) == "TypeError: what is launched is a function, not int"  # type: ignore[arg-type]
    assert told(lambda: launch(dict, ranks=0)) == "ValueError: ranks is at least 1, not 0"
    assert told(lambda: launch(dict, ranks="2")) == "TypeError: ranks is a whole number, not str"  # type: ignore[arg-type]
    assert told(lambda: launch(dict, ranks=1, device="tpu")) == "ValueError: device is one of cpu, cuda, not 'tpu'"
    if not torch.cuda.is_available():
        assert "SH503" in told(lambda: launch(dict, ranks=1, device="cuda"))

    def again() -> str:
        bind(TWO)
        return told(lambda: launch(dict, ranks=1))

    assert launch(again, ranks=2)[0] == "RuntimeError: this process is one of several ranks, and launches no others"


def test_ranks_in_other_orders_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARD_SYNC", "1")

    def differs() -> None:
        net = bind(TWO)
        net.step(net.place(batch()))
        if net.rank == 1:
            net.stepped()
        net.clip(1.0)

    expected = r"the ranks call in different orders: rank 0 calls `clip` \(its call 2\), and rank 1 calls `stepped`"
    with pytest.raises(RankError, match=expected):
        launch(differs, ranks=2)


def test_other_groups() -> None:
    def mistakes() -> list[str]:
        net = bind(TWO)
        mine = torch.distributed.new_group([0])
        found = [told(lambda: bind(ONE, group=mine)) if net.rank == 0 else "", told(lambda: bind(ONE))]
        return [text.partition("\n")[0] for text in found]

    first = "ValueError: a program has been bound in this process over other ranks; a process is one rank for all"
    second = "RunError: error[SH503]: the program is laid out for 1 ranks and is bound on 2"
    assert launch(mistakes, ranks=2) == [[first, second], ["", second]]


def test_without_torch() -> None:
    script = "import sys\nsys.modules['torch'] = None\nimport shardlang.torch"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    expected = "ImportError: error[SH517]: shardlang.torch needs torch, which is not installed\n"
    expected += 'help: `pip install "shardlang[train]"` installs all that training needs'
    assert done.returncode == 1 and expected in done.stderr


def test_a_task_of_a_launcher_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert "`launch` starts all ranks itself, and torchrun has started it as task 1 of 4" in told(
        lambda: launch(dict, ranks=2)
    )


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of a compiled program, and no process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pids = launch(lambda: bind(TWO) and os.getpid(), ranks=2)
    assert len({*pids}) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert list(tmp_path.iterdir()) == []
