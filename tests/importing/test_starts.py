"""The numbers that an imported program starts from are those that the module draws, also of what import cuts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.errors import RunError
from shardlang.graph.graph import Init
from shardlang.importing.imported import Imported, Wanted, import_module
from shardlang.sources.source import Source

Made = tuple[nn.Module, dict[str, Tensor]]
_LINE = re.compile(r"(\S+) = (\S+?)( transposed)?(?: part (\d) of (\d))?")


def imported(net: Callable[[], nn.Module], *shape: int) -> Imported:
    return import_module(lambda: (net(), {"x": torch.rand(*shape)}), Wanted("starts:net", {}, train=True))


def _deviation(start: Init) -> float:
    """The root of the mean square of what a start draws, from its definition."""
    given = start.args
    if start.kind in ("kaiming_uniform", "xavier_uniform"):
        return (1 / given[0] / 3) ** 0.5 if start.kind[0] == "k" else (6 / sum(given) / 3) ** 0.5
    if start.kind == "uniform":
        return float((given[1] - given[0]) / 12**0.5) if given[0] == -given[1] else math.nan
    return {"zeros": 0.0, "ones": 1.0}.get(start.kind, given[0] if given else math.nan)


def _compared(net: Callable[[], nn.Module], *shape: int) -> str:
    """Holds each parameter of the program to what the module has there under other seeds, and gives the text."""
    found, sink = imported(net, *shape), Sink()
    program = driver.check_source(Source("net.shard", found.text), sink)
    assert program is not None, sink.found
    values = (program.graph.values[each] for each in program.graph.params)
    starts = {each.path: each.init for each in values if each.init is not None}
    lines = [_LINE.fullmatch(line) for line in found.names.splitlines() if " = " in line and line[:5] != "tied "]
    assert len(lines) == len(starts)
    for line in lines:
        assert line is not None
        ours, theirs, turned, part, count = line.groups()
        drawn = []
        for seed in range(100, 120):
            torch.manual_seed(seed)
            tensor = net().state_dict()[theirs]
            tensor = tensor.t() if turned else tensor
            drawn.append((tensor.chunk(int(count))[int(part) - 1] if part else tensor).flatten())
        numbers = torch.cat(drawn).double()
        std, wanted = float(numbers.square().mean().sqrt()), _deviation(starts[ours])
        assert abs(std - wanted) <= 5 * wanted / math.sqrt(2 * len(numbers)) + 0.002 * wanted, (ours, std, starts[ours])
    return found.text


class Attends(nn.Module):
    def __init__(self, **settings: int) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(16, 4, batch_first=True, **settings)  # type: ignore[arg-type]
        self.down = nn.Linear(16, self.mix.kdim)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(x)
        return self.mix(x, y, y, need_weights=False)[0]


class Layer(nn.Module):
    def __init__(self, layer: nn.Module, *more: str) -> None:
        super().__init__()
        self.layer, self.more = layer, more

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, *(x.tanh() for _ in self.more))


class Own(nn.Module):
    """A product with a matrix by its columns, which starts as torch starts one of that shape."""

    def __init__(self, wide: int, out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(wide, out)), nn.Parameter(torch.empty(out))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        nn.init.uniform_(self.bias, -(out**-0.5), out**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Cut(nn.Module):
    """The result of a layer in three, after something is done to the layer."""

    def __init__(self, fc: nn.Module, change: Callable[..., object] = lambda weight, bias: None) -> None:
        super().__init__()
        self.fc = fc
        with torch.no_grad():
            change(fc.weight, fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.fc(x).chunk(3, -1)
        return torch.tanh(a) * b + c


class Steps(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.mix = kind(6, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)[0]


class Convolves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 8, 3, groups=2), nn.ConvTranspose2d(8, 6, (2, 3))
        self.three = nn.Conv2d(6, 6, 3, groups=6)

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.one(x)))


def _halves(weight: Tensor, bias: Tensor) -> None:
    weight[:12] *= 0.8


def test_a_joined_matrix_is_drawn_in_its_own_bounds() -> None:
    """torch draws queries, keys and values as one matrix of three times the rows."""
    text = _compared(Attends, 2, 5, 16)
    assert text.count("xavier_uniform(in, 3 * out)") == 1
    text = _compared(lambda: Layer(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)), 2, 5, 16)
    assert text.count("xavier_uniform(in, 3 * out)") == 1


@pytest.mark.parametrize(("net", "shape"), [
    (lambda: Attends(kdim=8, vdim=8, bias=False), (2, 5, 16)),
    (lambda: Layer(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), "memory"), (2, 5, 16)),
    (lambda: Cut(nn.Linear(16, 36)), (7, 16)),
    (lambda: Cut(nn.Linear(16, 36), lambda weight, bias: nn.init.xavier_uniform_(weight)), (7, 16)),
    (lambda: Cut(nn.Linear(16, 36), lambda weight, bias: nn.init.xavier_uniform_(weight[:12])), (7, 16)),
    (lambda: Cut(nn.Linear(16, 36), _halves), (7, 16)),
    (lambda: Cut(Own(16, 36)), (7, 16)),
    (lambda: Cut(Own(16, 36), lambda weight, bias: nn.init.xavier_uniform_(weight)), (7, 16)),
    (lambda: Steps(nn.GRU), (3, 5, 6)),
    (lambda: Steps(nn.LSTM), (3, 5, 6)),
    (Convolves, (2, 4, 9, 9)),
])  # fmt: skip
def test_what_is_cut_or_turned_starts_as_the_module_draws_it(
    net: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    _compared(net, *shape)


def test_parts_that_start_from_other_numbers_have_starts_of_their_own() -> None:
    def change(weight: Tensor, bias: Tensor) -> None:
        bias[:4], bias[4:8], bias[8:] = 0.0, 1.0, 0.5

    text = _compared(lambda: Cut(nn.Linear(16, 12), change), 7, 16)
    assert all(f"bias: [out] = {start}" in text for start in ("zeros()", "ones()", "constant(0.5)")), text


def test_a_gate_that_starts_from_zeros_is_told() -> None:
    """So few of the numbers of a bias are 0 that all of them may be drawn."""

    def net() -> nn.Module:
        made = Steps(nn.LSTM)
        nn.init.zeros_(made.mix.bias_ih_l0[8:16])  # type: ignore[index]
        return made

    with pytest.raises(RunError, match=r"`mix\.bias_ih_l0` starts otherwise") as error:
        imported(net, 3, 5, 6)
    assert error.value.code == "SH608"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Linear(16, 50), nn.Linear(16, 50)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * F.silu(self.table(x))


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x + self.fc.bias)


@pytest.mark.parametrize("net", [Tied, Adds])
def test_a_bias_without_its_weight_starts_in_numbers(net: Callable[[], nn.Module]) -> None:
    assert "uniform(-0.25, 0.25)" in _compared(net, 7, 16)


def test_a_row_of_padding_that_starts_as_zeros_is_told() -> None:
    """The language draws all rows of a table; with weights from a file there is no difference."""

    class Net(nn.Module):
        def __init__(self, padding: int | None) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 8, padding_idx=padding)

        def forward(self, ids: Tensor) -> Tensor:
            return torch.tanh(self.table(ids))

    def text(padding: int | None, weights: str | None = None) -> str:
        wanted = Wanted("starts:net", {}, weights=weights)
        return import_module(lambda: (Net(padding), {"ids": torch.randint(1, 50, (4, 6))}), wanted).text

    told = "SH608: row 0 of `table.weight` starts as zeros in the module, and is drawn here."
    assert told in text(0) and "SH608" not in text(None) + text(0, "net.safetensors")
