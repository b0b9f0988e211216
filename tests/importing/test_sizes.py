"""What a module does beyond the sizes of its example: windows, buffers and branches that no trace shows."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlang.errors import RunError
from shardlang.importing.imported import Imported, Wanted, import_module

Mask = Callable[[nn.Module, int], Tensor]


class Attention(nn.Module):
    """One head whose mask is a function of the number of positions."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.mask = mask
        self.register_buffer("table", window(64, 40), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unsqueeze(1) for layer in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(self, x.shape[1])).squeeze(1)


def window(size: int, wide: int) -> Tensor:
    places = torch.arange(size)
    away = places[:, None] - places
    return (away >= 0) & (away < wide)


def imported(mask: Mask, size: int = 8, **wanted: frozenset[str]) -> Imported:
    return import_module(lambda: (Attention(mask), {"x": torch.rand(2, size, 8)}), Wanted("sizes:net", {}, **wanted))


# A window of 40 that 8 positions do not show, each written in another way.
HIDDEN: dict[str, Mask] = {
    "compared": lambda net, size: window(size, 40),
    "moved": lambda net, size: torch.ones(size, size).tril().bool() & torch.ones(size, size).triu(-39).bool(),
    "a branch": lambda net, size: window(size, 40 if size > 42 else size),
    "numbers": lambda net, size: torch.zeros(size, size).masked_fill(~window(size, 40), -1e9),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_window_beyond_the_example_is_no_plain_causal_mask(name: str) -> None:
    with pytest.raises(RunError) as error:
        imported(HIDDEN[name])
    assert error.value.code == "SH603" and "window = 40" in error.value.message


@pytest.mark.parametrize("name", HIDDEN)
def test_an_example_beyond_the_window_shows_it(name: str) -> None:
    assert "causal = true, window = 40" in imported(HIDDEN[name], 43).text


def test_a_mask_that_is_a_part_of_a_buffer_follows_the_rule_of_the_whole_buffer() -> None:
    found = imported(lambda net, size: net.table[:size, :size])
    assert "causal = true, window = 40" in found.text


def test_positions_that_end_beyond_the_example_are_not_counted_on() -> None:
    def capped(net: nn.Module, size: int) -> Tensor:
        places = torch.arange(size).clamp(max=39)
        return places[:, None] >= places

    with pytest.raises(RunError) as error:
        imported(capped)
    assert error.value.code in ("SH601", "SH603")


def test_a_window_that_no_trace_reaches_is_told_and_can_be_accepted() -> None:
    def far(net: nn.Module, size: int) -> Tensor:
        return window(size, 100_000)

    with pytest.raises(RunError, match="compared with 100000") as error:
        imported(far)
    assert error.value.code == "SH605"
    text = imported(far, accept=frozenset({"SH605"})).text
    assert "## SH605: positions are compared with 100000" in text and "causal = true)" in text


class Positions(nn.Module):
    """A table of positions of which a part is read, a bias that only chooses, and layers left out at random."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(40, 8))
        self.chooses = nn.Parameter(torch.zeros(8))
        self.layerdrop = 0.1

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.table[: x.shape[1]]
        best = (y + self.chooses).topk(2, dim=-1).indices
        return y if torch.rand([]) < self.layerdrop else y * y.gather(-1, best).sum(-1, keepdim=True)


def test_a_part_of_a_table_is_as_long_as_the_input_and_what_only_chooses_is_a_state() -> None:
    def build() -> tuple[nn.Module, dict[str, Tensor]]:
        return Positions(), {"x": torch.rand(2, 6, 8)}

    with pytest.raises(RunError, match="`layerdrop` leaves layers out at random"):
        import_module(build, Wanted("sizes:build", {}))
    text = import_module(build, Wanted("sizes:build", {}, frozenset({"SH604"}))).text
    assert "= 0..seq)" in text and "state chooses: " in text and "## SH604: `layerdrop`" in text


class Speech(nn.Module):
    """What a configuration says of training: layers that are left out, spans of the input that are hidden."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config, self.fc = config, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.config.mask_time_prob > 0 and self.training:
            x = x * torch.tensor(numpy.random.rand(*x.shape[:2], 1) > self.config.mask_time_prob).float()
        x = x if torch.rand([]) < self.config.layerdrop else self.fc(x)
        return x if numpy.random.rand() > self.config.layerdrop else self.fc(x)


def test_what_a_configuration_leaves_to_chance_in_training_is_told() -> None:
    config = SimpleNamespace(mask_time_prob=0.05, layerdrop=0.1)

    def build() -> tuple[nn.Module, dict[str, Tensor]]:
        return nn.Sequential(Speech(config), Speech(config)), {"input": torch.rand(2, 6, 8)}

    with pytest.raises(RunError, match=r"`0\.config\.mask_time_prob` hides spans of its input at random in training"):
        import_module(build, Wanted("sizes:build", {}))
    text = import_module(build, Wanted("sizes:build", {}, frozenset({"SH604"}))).text
    assert text.count("## SH604: `0.config.") == text.count("## SH604") == 2 and "rand" not in text.split("\n\n", 1)[1]
    assert vars(config) == {"mask_time_prob": 0.05, "layerdrop": 0.1}


class Ones(nn.Module):
    """A gate of one feature that is stretched, a norm without bias beside one with it, a change of a view in place."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.fc, self.bias = nn.Linear(8, 1), nn.Linear(8, 8), nn.Parameter(torch.randn(8))
        self.one, self.other = nn.LayerNorm(8), nn.LayerNorm(8, bias=False)
        self.conv = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3))

    def forward(self, x: Tensor) -> Tensor:
        part = self.fc(x).unsqueeze(2).squeeze(2)
        part.add_(self.bias)
        image = self.conv(x[:, :2, None, :2])
        return torch.sigmoid(self.gate(x)) * self.other(self.one(part)) + image.sum((1, 2, 3))[:, None, None]


def test_dims_of_one_place_are_stretched_and_agree() -> None:
    text = import_module(lambda: (Ones(), {"x": torch.rand(2, 6, 8)}), Wanted("sizes:ones", {})).text
    assert "use std.nn: " in text and "model LayerNorm2(" in text


@pytest.mark.parametrize("end, what", [(6, "in place on a part of another tensor"), (1, "a part in several pieces")])
def test_a_write_into_an_input_or_into_every_second_place_is_refused(end: int, what: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            if end == 1:
                y[:, ::2].mul_(2.0)
            else:
                x[:, 1:].mul_(2.0)
            return y * x

    with pytest.raises(RunError, match=what):
        import_module(lambda: (Net(), {"x": torch.rand(2, 6, 8)}), Wanted("sizes:net", {}))


def test_a_complex_constant_is_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            turns = torch.polar(torch.ones(8, 8), torch.arange(64.0).view(8, 8))
            return (self.fc(x) @ turns.real) + torch.view_as_real(turns * self.fc(x)[0, 0, 0]).sum()

    with pytest.raises(RunError) as error:
        import_module(lambda: (Net(), {"x": torch.rand(2, 6, 8)}), Wanted("sizes:net", {}))
    assert error.value.code == "SH601"


class Types(nn.Module):
    """A table of words, and one of a single row."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(20, 8), nn.Embedding(1, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.types(torch.zeros_like(ids))


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.norm = Types(), nn.LayerNorm(8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.embeddings(ids))


class Tied(nn.Module):
    """A head that is a table two layers down, beside a table of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = Middle()

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.middle(ids), self.middle.embeddings.words.weight)


def test_a_head_is_tied_to_a_table_beside_one_of_a_single_row() -> None:
    found = import_module(lambda: (Tied(), {"ids": torch.randint(0, 20, (2, 6))}), Wanted("sizes:tied", {}))
    assert "middle.embeddings.words.weight" in found.text and found.report["largest difference"] <= 1e-9
