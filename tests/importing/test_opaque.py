"""`shardc import --opaque`: what the language has no word for becomes operators of the user's own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shardlang.cli.main import run
from shardlang.errors import RunError
from shardlang.importing.imported import Imported, Wanted, import_module
from shardlang.importing.opaque.sizes import Operand, Unsized, sizes
from tests.cli.process import shardc
from tests.importing import modules, strange

TRAIN = """
strategy data_parallel {
  mesh dp = 2
  split batch over dp
}

dim batch = 4

train {
  model = Summing()
  data = numpy("data.npz", x: [batch, 5, 6], y: [batch, 5, 3], shuffle = false)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.1)
  steps = 3
  init = safetensors("net.safetensors", names = "net.map")
}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(strange.__file__, tmp_path / "odd.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(made: Callable[[], strange.Example]) -> Imported:
    return import_module(made, Wanted("odd:net", {}, opaque="net_ops"))


def test_a_step_without_a_word_is_verified_and_trains_as_its_module_does(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three steps from the module's own weights on two ranks: its losses to 1e-6."""
    line = ["import", "odd:summing", "-o", "net.shard", "--weights", "net.safetensors"]
    assert run(line) == 1
    assert "help: `--opaque` makes operators of your own" in capsys.readouterr().err
    assert run([*line, "--opaque"]) == 0
    assert "`torch_logcumsumexp`: not verified yet; next: shardc verify net_ops.shard\n" in capsys.readouterr().out
    (here / "train.shard").write_text((here / "net.shard").read_text() + TRAIN)
    refused = shardc("run", "train.shard", "--ranks", "2", folder=here)
    assert refused.returncode != 0 and "SH611" in refused.stderr
    assert run(["verify", "net_ops.shard"]) == 0
    assert run(["check", "train.shard", "--ranks", "2"]) == 0
    torch.manual_seed(1)
    net, _ = strange.summing()
    draws = np.random.default_rng(0)
    x, y = draws.random((12, 5, 6), np.float32), draws.random((12, 5, 3), np.float32)
    np.savez("data.npz", x=x, y=y)
    done = shardc("run", "train.shard", "--ranks", "2", "--metrics", "figures.jsonl", folder=here)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (here / "figures.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if "step" in line]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, loss in enumerate(losses):
        rows = slice(4 * step, 4 * step + 4)
        expected = F.mse_loss(net(torch.from_numpy(x[rows])), torch.from_numpy(y[rows]))
        assert loss == pytest.approx(expected.item(), abs=1e-6)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
    assert len(losses) == 3


def test_files_are_as_shardc_fmt_writes_them_and_the_same_again(here: Path) -> None:
    line = ["import", "odd:sorting", "-o", "net.shard", "--opaque"]
    assert run(line) == 0
    names = ["net.shard", "net.map", "net_ops.shard", "net_ops.py"]
    written = [(here / name).read_bytes() for name in names]
    assert run(["fmt", "--check", "net.shard", "net_ops.shard"]) == 0
    assert run(line) == 0
    assert written == [(here / name).read_bytes() for name in names]


def test_no_file_of_the_users_is_replaced(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "net_ops.py").write_text("import torch\n")
    assert run(["import", "odd:summing", "-o", "net.shard", "--opaque"]) == 2
    assert "the steps of the module would replace a file that holds something else" in capsys.readouterr().err


def test_a_module_with_a_word_for_all_declares_nothing(here: Path) -> None:
    shutil.copy(modules.__file__, here / "plain.py")
    assert run(["import", "plain:mlp", "-o", "net.shard", "--opaque"]) == 0
    assert not (here / "net_ops.shard").exists() and 'use "./' not in (here / "net.shard").read_text()


def test_dims_are_free_where_the_trial_finds_no_difference() -> None:
    declared = imported(strange.summing).declared
    assert "operator torch_logcumsumexp(x: [batch, seq, d]) -> [batch, seq, d] {\n" in declared
    assert "  # `batch` and `d` may be split: found by trial\n  whole seq\n" in declared


def test_steps_behind_each_other_are_one_piece_that_layers_share() -> None:
    """Complex numbers stay within it, parameters are operands, numbers with a fraction settings."""
    found = imported(strange.mixer)
    assert found.declared.count("\noperator ") == 1 and found.python.count("def ") == 1
    assert "scale: [d], alpha: float = 0.5) -> [batch, seq, d] {" in found.declared
    assert "    real = aten.real(fft_fft2)\n" in found.python
    assert "torch_fft_fft_to_celu(mixed, x, scale, alpha = alpha)" in found.text


def test_several_results_are_operators_each_and_made_dims_have_a_formula() -> None:
    found = imported(strange.sorting)
    assert "-> i64[batch, 1, d]" in found.declared and "torch_kthvalue_0(h) * torch_kthvalue_1(h)" in found.text
    assert "-> [batch, unfold_2, d, unfold_4] {\n  dim unfold_2 = seq - 1\n  dim unfold_4 = 2\n" in found.declared
    assert "return aten.unfold(x, 1, 2, 1).clone()\n" in found.python


def test_dims_that_are_one_by_chance_stay_two_and_small_constants_are_written() -> None:
    found = imported(strange.distances)
    assert "torch_cdist(x: [batch, seq, d], y: [batch, y_2, d]) -> [batch, seq, y_2]" in found.declared
    assert "aten.bucketize(x, torch.tensor([0.5, 1.0, 2.0], dtype=x.dtype, device=x.device))" in found.python


def test_random_numbers_are_refused() -> None:
    with pytest.raises(RunError, match="two calls with equal operands give different results") as refused:
        imported(strange.drawing)
    assert refused.value.code == "SH601" and "random numbers are operands" in refused.value.help


def test_complex_positions_hold_at_all_sizes() -> None:
    """Constants of one number have no size, and queries and keys share the operator."""
    found = imported(strange.turning)
    assert found.declared.count("\noperator ") == 1 and found.report["second sizes"]["x"][1] > 5
    assert "(x: [x_1, x_2, x_3, 2, 2], y: [x_2, 1])" in found.declared
    assert "aten.polar(torch.tensor(1.0, dtype=x.dtype, device=x.device), mul)" in found.python


def test_a_view_may_cut_a_dim_that_an_operator_makes() -> None:
    found = imported(strange.windows)
    assert "  dim im2col_2 = 3 * channels\n" in found.declared
    assert "(torch_im2col(rearrange(fc(x) -> [batch, hidden, seq, 1])) -> [batch, out * parts, seq])" in found.text


@pytest.mark.parametrize(
    ("function", "operands", "result"),
    [
        (lambda x, y: torch.cat([x, y], 1), [(2, 3), (2, 4)], ["{0}", "{1} + {2}"]),
        (lambda x: x.flatten(), [(2, 3)], ["{0} * {1}"]),
        (lambda x: x[:, ::2], [(4, 7)], ["{0}", "({1} + 1) // 2"]),
        (lambda x: F.pad(x, (1, 2)), [(4, 5)], ["{0}", "{1} + 3"]),
        (lambda x: x.repeat(1, 3), [(4, 5)], ["{0}", "3 * {1}"]),
        (lambda x: x.reshape(2, -1), [(4, 6)], ["2", "12"]),
        (lambda x, y: x @ y, [(3, 4), (4, 5)], ["{0}", "{2}"]),
        (torch.cdist, [(5, 8), (5, 8)], ["{0}", "{2}"]),  # of one size by chance
        (lambda x: torch.linalg.inv(x + torch.eye(3)), [(2, 3, 3)], ["{0}", "3", "3"]),
        (lambda x: x.reshape(*x.shape[:-1], -1, 2), [(3, 4, 6)], ["{0}", "{1}", "{2} // 2", "2"]),
        (lambda x: x.reshape(x.shape[0], 2, -1).flatten(), [(3, 4)], ["{0} * {1}"]),
        (lambda x, y: x + torch.cat([y, y], 1), [(4, 6), (4, 3)], ["{0}", "6"]),
    ],
)  # fmt: skip
def test_sizes_of_a_result_are_found_by_calls_or_are_numbers(
    function: Callable[..., torch.Tensor], operands: list[tuple[int, ...]], result: list[str]
) -> None:
    given = [Operand(shape, torch.float32, tuple((at, dim) for dim in range(len(shape))))
             for at, shape in enumerate(operands)]  # fmt: skip
    shape = tuple(function(*map(torch.rand, operands)).shape)
    found = sizes(function, {}, given, shape)
    told = [each and (each.formula if each.same is None else f"{{{each.same}}}") for each in found.result]
    assert told == result


def test_an_operator_stays_in_its_layer_though_it_reads_what_is_there_before() -> None:
    found = imported(strange.later)
    assert found.declared.count("\noperator ") == 1
    assert "return second(first(x), x)\n" in found.text


def test_a_call_that_ends_its_process_is_a_size_that_is_not_taken() -> None:
    """torch aborts at sizes that it does not expect."""

    def ends(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 5:
            os.abort()
        return x + x.sum(1, keepdim=True)

    found = sizes(ends, {}, [Operand((4, 3), torch.float32, ("a", "b"))], (4, 3))
    assert found.groups == (((0, 0),), ((0, 1),))
    with pytest.raises(Unsized, match=r"ends the process that calls it \(SIGABRT \(signal 6\)\)"):
        sizes(ends, {}, [Operand((5, 3), torch.float32, ("a", "b"))], (5, 3))
