"""Modules that differ in what a formal can say are one model; others of one class get names that tell them apart."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlang.importing.imported import Imported, Wanted, import_module
from shardlang.importing.steps.nodes import Stored
from shardlang.importing.steps.starts import starts

Made = tuple[nn.Module, dict[str, Tensor]]


def brought_in(build: Callable[[], Made]) -> Imported:
    """The module as it is imported; `import_module` compares values and gradients itself."""
    return import_module(build, Wanted("here:build", {}))


def heads_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("model ")]


def normal(net: nn.Module, std: float = 0.02) -> nn.Module:
    """Weights that start normal, so that no layer is one of the library; biases at zero."""
    for name, each in net.named_parameters():
        nn.init.zeros_(each) if name.endswith("bias") else nn.init.normal_(each, std=std)
    return net


class Strides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(6, 8, 3, padding=1), nn.Conv1d(8, 10, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))


def test_convolutions_of_two_strides_are_one_model() -> None:
    text = brought_in(lambda: (normal(Strides()), {"x": torch.rand(2, 6, 12)})).text
    assert heads_of(text)[0] == "model Conv1d(in: dim, out: dim, stride: int) {"
    assert "conv1d(x, weight, bias, stride = stride, padding = 1)" in text
    assert "one = Conv1d(channels, hidden, stride = 1)" in text
    assert re.search(r"two = Conv1d\(hidden, \w+, stride = 2\)", text)
    assert len(heads_of(text)) == 2


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(-2)


class Stack(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention(causal) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for each in self.layers:
            x = each(x)
        return x


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reader, self.writer = Stack(False), Stack(True)

    def forward(self, x: Tensor) -> Tensor:
        return self.writer(self.reader(x))


def test_stacks_that_see_what_is_behind_or_not_are_one_model() -> None:
    text = brought_in(lambda: (Both(), {"x": torch.rand(2, 5, 8)})).text
    assert [head.split("(")[0] for head in heads_of(text)] == ["model Attention", "model Stack", "model Both"]
    assert "attention(q, k, v, causal = causal)" in text
    assert "causal = false)" in text and "causal = true)" in text


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(x)))


def test_a_layer_without_a_bias_is_the_same_model() -> None:
    text = brought_in(lambda: (normal(Biased()), {"x": torch.rand(4, 6)})).text
    assert heads_of(text)[0] == "model Linear(in: dim, out: dim, bias: bool = true) {"
    assert text.count("einsum(x, weight -> [..., out])") == 2
    assert "one = Linear(features, hidden)" in text
    assert re.search(r"two = Linear\(hidden, \w+, bias = false\)", text)


def test_two_layers_whose_biases_start_otherwise_are_two_models() -> None:
    """Neither is the other one without its bias."""

    def build() -> Made:
        net = nn.Sequential(nn.Linear(6, 80), nn.Linear(80, 10))
        for layer, std in zip(net, (0.0, 0.5), strict=True):
            nn.init.xavier_uniform_(layer.weight), nn.init.normal_(layer.bias, std=std)
        return net, {"input": torch.rand(2, 6)}

    text = brought_in(build).text
    assert "bias: bool" not in text and "bias: [out] = zeros()" in text and "bias: [out] = normal(" in text


def test_a_layer_without_a_bias_that_starts_otherwise_gives_its_deviation() -> None:
    def build() -> Made:
        net = Biased()
        nn.init.normal_(net.one.weight, std=0.02), nn.init.zeros_(net.one.bias)
        nn.init.normal_(net.two.weight, std=0.5)
        return net, {"x": torch.rand(4, 6)}

    text = brought_in(build).text
    assert heads_of(text)[0] == "model Linear(in: dim, out: dim, std: float, bias: bool = true) {"
    assert re.search(r"two = Linear\(hidden, \w+, std = 0.\d+, bias = false\)", text)


class Chosen(nn.Module):
    """Scores to which a table is added, where no key lies behind its query."""

    def __init__(self, lowest: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.table = nn.Embedding(12, 2)
        self.lowest = lowest

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        places = torch.arange(x.shape[1])
        away = places[:, None] - places
        bias = self.table(away.abs()).permute(2, 0, 1)[None]
        bias = torch.where(away >= 0, bias, self.lowest)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(-2)


@pytest.mark.parametrize(("lowest", "causal"), [(torch.finfo(torch.float32).min, True), (-1.5, False)])
def test_a_causal_mask_that_chooses_a_bias_is_causal(lowest: float, causal: bool) -> None:
    text = brought_in(lambda: (Chosen(lowest), {"x": torch.rand(2, 5, 8)})).text
    assert ("causal = true" in text, "where(" in text) == (causal, not causal)


def test_draws_that_agree_with_a_deviation_of_more_draws_have_that() -> None:
    def tensors(seed: int) -> dict[str, Tensor]:
        draws = torch.Generator().manual_seed(seed)

        def drawn(*shape: int, std: float) -> Tensor:
            return torch.empty(shape).normal_(0, std, generator=draws)

        return {"a.weight": drawn(200, 100, std=0.0884), "b.weight": drawn(16, 16, std=0.0884),
                "c.weight": drawn(16, 16, std=0.12)}  # fmt: skip

    made = [tensors(seed) for seed in (1, 2, 3)]
    torch.manual_seed(3)
    a, b, c = map(Stored, made[0])
    found = starts(made, [a, b, c], frozenset(), given=False)
    assert found[a].args == found[b].args != found[c].args
    alone = starts([{"b.weight": each["b.weight"]} for each in made], [b], frozenset(), given=False)
    assert alone[b].args != found[b].args


class Block(nn.Module):
    """A layer, and one more for some."""

    def __init__(self, inner: int, outer: int, more: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(inner, outer)
        self.shortcut = nn.Linear(inner, outer) if more else None

    def forward(self, x: Tensor) -> Tensor:
        rest = x if self.shortcut is None else self.shortcut(x)
        return torch.relu(self.fc(x)) + rest


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(6, 6), Block(6, 9, more=True)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x))


class Side(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(6, 6), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x))


class Sides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Side(torch.relu), Side(torch.tanh)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


@pytest.mark.parametrize(
    ("net", "names"),
    [(Net, ["Block", "BlockShortcut", "Net"]), (Sides, ["SideLeft", "SideRight", "Sides"])],
    ids=["what it has", "where it stands"],
)
def test_models_of_one_class_have_names_that_tell_them_apart(net: type[nn.Module], names: list[str]) -> None:
    text = brought_in(lambda: (net(), {"x": torch.rand(4, 6)})).text
    assert [re.match(r"model (\w+)", head)[1] for head in heads_of(text)] == names
