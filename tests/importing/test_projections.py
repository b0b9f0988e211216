"""`nn.MultiheadAttention` and torch's transformer: a layer each for queries, keys and values, with heads to split."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlang.importing.imported import Imported, Wanted, import_module

Made = tuple[nn.Module, dict[str, Tensor]]
PROJECTED = "= rearrange({}({}) -> [batch, heads, {}, head_dim])"


def imported(build: Callable[[], Made]) -> Imported:
    return import_module(build, Wanted("projections:net", {}))


class Own(nn.Module):
    def __init__(self, **settings: bool) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(16, 4, dropout=0.1, **settings)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.mix(x, x, x, key_padding_mask=hidden, need_weights=False)[0]


class Cross(Own):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.mix(x, y, y, need_weights=False)[0]


def _layers(text: str, calls: tuple[str, str, str], seq: tuple[str, str]) -> None:
    for name, call, at in zip(("query", "key", "value"), calls, (seq[0], seq[1], seq[1]), strict=True):
        assert f"layer {name} = " in text and PROJECTED.format(name, call, at) in text, text
    assert "layer out_proj = " in text and "in_proj" not in text and "pick(" not in text, text


@pytest.mark.parametrize("bias", [True, False])
def test_attention_to_itself_has_a_layer_for_each(bias: bool) -> None:
    found = imported(lambda: (Own(batch_first=True, bias=bias), {
        "x": torch.rand(3, 7, 16), "hidden": torch.zeros(3, 7, dtype=torch.bool)}))  # fmt: skip
    _layers(found.text, ("x", "x", "x"), ("seq", "seq"))
    assert "attention(q, k, v, not keep, p = 0.1)" in found.text and "where(" not in found.text
    assert "mix.key.weight = mix.in_proj_weight part 2 of 3\n" in found.names
    assert ("mix.value.bias = mix.in_proj_bias part 3 of 3\n" in found.names) == bias
    assert "mix.out_proj.weight = mix.out_proj.weight\n" in found.names


def test_attention_to_others_has_a_layer_for_each() -> None:
    found = imported(lambda: (Cross(batch_first=True), {"x": torch.rand(3, 7, 16), "y": torch.rand(3, 5, 16)}))
    _layers(found.text, ("x", "y", "y"), ("seq", "y_seq"))
    assert "mix.value.weight = mix.in_proj_weight part 3 of 3\n" in found.names


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.encoder(x, mask=mask, src_key_padding_mask=hidden, is_causal=True)


def test_torchs_encoder_is_an_array_of_one_layer_and_its_masks_are_keep_and_causal() -> None:
    text = imported(lambda: (Encoder(), {
        "x": torch.rand(3, 7, 16), "hidden": torch.zeros(3, 7, dtype=torch.bool)})).text  # fmt: skip
    assert "layer layers[3] = TransformerEncoderLayer(" in text
    assert "keep, causal = true, p = 0.1)" in text and "where(" not in text
    _layers(text, ("x", "x", "x"), ("seq", "seq"))


class Stacked(nn.Module):
    """Attention whose queries, keys and values are put in front of all dims, or are taken from behind the heads."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.qkv, self.way = nn.Linear(16, 48), way

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        found = self.qkv(x)
        if self.way == "chunks":
            parts = [each.view(b, t, 4, 4).transpose(1, 2) for each in found.chunk(3, -1)]
        elif self.way == "in front":
            parts = list(found.reshape(b, t, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0))
        elif self.way == "turned twice":
            value, query, key = (
                found.unflatten(-1, (3, 4, 4)).transpose(1, 3).transpose(1, 2)[:, at] for at in (2, 0, 1)
            )
            parts = [query, key, value]
        elif self.way == "of each head":
            parts = list(found.view(b, t, 4, 3, 4).transpose(1, 2).unbind(3))
        else:
            whole = found.view(b, t, 3, 4, 4).transpose(1, 3)
            parts = [whole[:, :, 0], whole[:, :, 1], whole[:, :, 0] + whole[:, :, 1]]
        return F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(-2)


def _stacked(way: str) -> Imported:
    return imported(lambda: (Stacked(way), {"x": torch.rand(3, 7, 16)}))


@pytest.mark.parametrize("way", ["in front", "turned twice"])
def test_parts_that_are_stacked_are_the_layers_that_chunks_are(way: str) -> None:
    """So that heads can be split over ranks."""
    found, chunks = _stacked(way), _stacked("chunks")
    assert found.names == chunks.names and found.text.partition("forward")[0] == chunks.text.partition("forward")[0]
    assert found.text.count("-> [batch, heads, seq, head_dim])") == 3
    assert "qkv.weight part 2 of 3" in found.names and "pick(" not in found.text


@pytest.mark.parametrize("way", ["of each head", "two of three"])
def test_parts_that_are_no_rows_in_order_or_not_all_stay_one_layer(way: str) -> None:
    text = _stacked(way).text
    assert "layer qkv = Linear(" in text and "pick(" in text


def test_a_matrix_of_which_a_part_is_read_elsewhere_stays_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 24)

        def forward(self, x: Tensor) -> Tensor:
            a, b, c = self.fc(x).chunk(3, -1)
            return (a + b * c) @ self.fc.weight[:8]

    text = imported(lambda: (Twice(), {"x": torch.rand(3, 8)})).text
    assert "part1" not in text and "layer fc = Linear(" in text


def test_rows_are_turned_behind_a_product() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.fc(x.transpose(0, 1))).sum(0)

    assert "fc(x)" in imported(lambda: (Turned(), {"x": torch.rand(3, 5, 8)})).text
