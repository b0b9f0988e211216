"""Numbers of a module that depend on the sizes of its inputs: they are written by dims, or the import is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlang.errors import RunError
from shardlang.importing.imported import Imported, Wanted, import_module
from tests.importing.test_import import EXACT

Forward = Callable[[nn.Module, Tensor], Tensor]


class Net(nn.Module):
    """Layers, and a function of them and of [batch, seq, 8]."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.fc, self.conv = nn.Linear(8, 8), nn.Conv1d(8, 8, 4, groups=8, padding=3)
        self.table = nn.Parameter(torch.randn(20, 8))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def imported(function: Forward, accept: str = "", seq: int = 6) -> Imported:
    wanted = Wanted("by_dims:net", {}, frozenset(accept.split()))
    return import_module(lambda: (Net(function), {"x": torch.rand(2, seq, 8)}), wanted)


def causal(net: nn.Module, x: Tensor) -> Tensor:
    """A convolution that sees what is before alone, as Mamba has it."""
    return F.silu(net.conv(net.fc(x).mT)[:, :, : x.shape[1]]).mT * x


def chunks(net: nn.Module, x: Tensor) -> Tensor:
    """Sums up to each place within chunks of 16, of a sequence that is padded to whole ones."""
    more = -x.shape[1] % 16
    parts = F.pad(net.fc(x), (0, 0, 0, more)).unflatten(1, (-1, 16))
    before = F.pad(parts.sum(2), (0, 0, 1, 0)).cumsum(1)[:, :-1]
    return (parts.cumsum(2) + before.unsqueeze(2)).flatten(1, 2)[:, : x.shape[1]]


def branch(net: nn.Module, x: Tensor) -> Tensor:
    """A way for long sequences alone, beside a number that is a size."""
    return net.fc(x) * x.shape[1] if x.shape[1] <= 40 else net.fc(x).cumsum(1)


# A function -> a part of its text.
DIMS: dict[str, tuple[Forward, str]] = {
    "a factor": (lambda net, x: net.fc(x) * x.shape[1], "* seq"),
    "one more": (lambda net, x: net.fc(x) * (x.shape[1] + 1), "* (seq + 1)"),
    "several times": (lambda net, x: net.fc(x) * (3 * x.shape[1]), "* (3 * seq)"),
    "a batch": (lambda net, x: net.fc(x) + x.shape[0], "+ batch"),
    "a part of what is computed": (causal, "0..length"),
    "a number of rows": (lambda net, x: net.fc(x) + (2 * net.table)[1 : x.shape[1] + 1], "seq + 1"),
}


@pytest.mark.parametrize("name", DIMS)
def test_a_number_that_is_a_size_is_written_by_its_dim(name: str) -> None:
    function, part = DIMS[name]
    found = imported(function)
    assert found.report["largest difference"] <= EXACT
    assert part in found.text, found.text


def test_what_pads_to_a_whole_chunk_holds_up_to_one_chunk() -> None:
    with pytest.raises(RunError) as error:
        imported(chunks)
    assert error.value.code == "SH603" and "--accept SH605" in error.value.help
    found = imported(chunks, "SH605")
    assert "16 - seq" in found.text and "## SH605: " in found.text and "up to 16 alone" in found.text


def test_a_way_for_long_sequences_alone_is_told_with_its_size() -> None:
    with pytest.raises(RunError) as error:
        imported(branch)
    assert error.value.code == "SH603" and "up to 40 alone" in error.value.help
    found = imported(branch, "SH605")
    assert "* seq" in found.text and "up to 40 alone" in found.text


@pytest.mark.parametrize("name, function", [
    ("half of it", lambda net, x: net.fc(x) * ((x.shape[1] + 1) // 2)),
    ("a seventh of it", lambda net, x: net.fc(x) + x.shape[1] // 7),
    ("its square", lambda net, x: net.fc(x) * x.shape[1] ** 2),
    ("as many steps", lambda net, x: sum(net.fc(x) ** at for at in range(x.shape[1]))),
])  # fmt: skip
def test_what_no_formula_says_is_refused(name: str, function: Forward) -> None:
    """Two sizes have a line through them, and the third is beside it; or the example is."""
    with pytest.raises(RunError) as error:
        imported(function, "SH605")
    assert error.value.code == "SH603"


def test_a_third_size_is_asked_before_numbers_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts alone tell that a line through two sizes is none of the third."""
    monkeypatch.setattr("shardlang.importing.attempt.Attempt.compared", lambda way, found: 0.0)
    with pytest.raises(RunError) as error:
        imported(lambda net, x: net.fc(x) * ((x.shape[1] + 1) // 2), "SH605")
    assert error.value.code == "SH603"
