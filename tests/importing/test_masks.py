"""Masks that are inputs: padding becomes `keep` of attention, and is compared with rows that are padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlang.errors import RunError
from shardlang.importing.attempt import Attempt
from shardlang.importing.compare import masked
from shardlang.importing.imported import Imported, Wanted, import_module

See = Callable[[Tensor], Tensor]
Made = tuple[nn.Module, dict[str, Tensor]]


class Attention(nn.Module):
    """Two heads that see the keys a function of `mask` says."""

    def __init__(self, see: See) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.see = see

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.see(mask)).transpose(1, 2).flatten(-2)


def counted(mask: Tensor) -> Tensor:
    """The mask at places that tensors count, as `transformers` writes it."""
    rows, keys = torch.arange(mask.shape[0]), torch.arange(mask.shape[1])
    return mask.bool()[rows[:, None, None, None], keys[None, None, None, :]]


def positions(mask: Tensor) -> Tensor:
    places = torch.arange(mask.shape[1])
    return places[:, None] - places


# How a module says which keys are seen -> the call of attention.
SEEN: dict[str, tuple[See, str]] = {
    "a view": (lambda mask: mask[:, None, None, :].bool(), "attention(q, k, v, mask != 0)"),
    "counted": (counted, "attention(q, k, v, mask != 0)"),
    "compared": (lambda mask: mask.gt(0)[:, None, None], "attention(q, k, v, mask > 0)"),
    "stretched": (lambda mask: counted(mask).expand(-1, 1, mask.shape[1], -1), "attention(q, k, v, mask != 0)"),
    "beside all": (lambda mask: counted(mask) & torch.ones(1, 1, 1, 1).bool(), "attention(q, k, v, mask != 0)"),
    "causal": (lambda mask: (positions(mask) >= 0) & counted(mask), "attention(q, k, v, mask != 0, causal = true)"),
    "window": (lambda mask: counted(mask) & ((positions(mask) >= 0) & (positions(mask) < 3)),
               "attention(q, k, v, mask != 0, causal = true, window = 3)"),
    "twice": (lambda mask: counted(mask) & (mask < 2)[:, None, None], "attention(q, k, v, mask != 0 and mask < 2)"),
}  # fmt: skip


def made(see: See, dtype: torch.dtype = torch.int64, size: int = 9) -> Made:
    return Attention(see), {"x": torch.rand(3, size, 8), "mask": torch.ones(3, size, dtype=dtype)}


def imported(build: Callable[[], Made], **dims: tuple[str, ...]) -> Imported:
    return import_module(build, Wanted("masks:net", dims))


@pytest.mark.parametrize("name", SEEN)
def test_padding_is_keep_of_attention(name: str) -> None:
    see, call = SEEN[name]
    text = imported(lambda: made(see)).text
    assert "forward(x: [batch, seq, features], mask: i64[batch, seq])" in text, text
    assert call in text, text
    assert "_batch" not in text


def test_truths_are_a_mask_too() -> None:
    assert "mask: bool[batch, seq]" in imported(lambda: made(lambda mask: counted(mask), torch.bool)).text


def test_places_that_are_not_counted_in_order_are_no_view() -> None:
    def turned(mask: Tensor) -> Tensor:
        rows, keys = torch.arange(mask.shape[0]), torch.arange(mask.shape[1]).flip(0)
        return mask.bool()[rows[:, None, None, None], keys[None, None, None, :]]

    with pytest.raises(RunError) as error:
        imported(lambda: made(turned))
    assert error.value.code == "SH601" and "an index by several tensors" in error.value.message


def test_a_mask_is_compared_with_rows_that_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that masks nothing would not show that the mask is lost."""

    def text_without(way: Any) -> None:
        written(way)
        way.text = way.text.replace("mask != 0", "mask < 2")

    written = Attempt.write
    monkeypatch.setattr(Attempt, "write", text_without)
    with pytest.raises(RunError) as error:
        imported(lambda: made(SEEN["a view"][0]))
    assert error.value.code == "SH607" and "result 1 differs" in error.value.message


def test_a_mask_of_what_is_hidden_is_compared_with_padded_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's `key_padding_mask` is false where nothing is hidden."""

    def text_without(way: Any) -> None:
        written(way)
        way.text = way.text.replace("not mask", "not mask or mask")

    written = Attempt.write
    monkeypatch.setattr(Attempt, "write", text_without)
    with pytest.raises(RunError) as error:
        imported(
            lambda: (
                Attention(lambda mask: ~mask[:, None, None, :]),
                {"x": torch.rand(3, 9, 8), "mask": torch.zeros(3, 9, dtype=torch.bool)},
            )
        )
    assert error.value.code == "SH607" and "result 1 differs" in error.value.message


def test_padded_rows_end_in_zeros_and_keep_one_place() -> None:
    rows = {"ids": torch.arange(8).reshape(2, 4), "mask": torch.ones(5, 4, dtype=torch.int64), "x": torch.ones(2, 4)}
    found = masked(rows)
    assert found is not None and found["ids"] is rows["ids"] and found["x"] is rows["x"]
    lengths = found["mask"].sum(1).tolist()
    assert len(set(lengths)) > 2 and min(lengths) >= 1 and lengths[0] > lengths[-1]
    assert bool((found["mask"].diff(dim=1) <= 0).all())
    assert masked({"ids": rows["ids"], "kinds": torch.zeros(2, 4, dtype=torch.int64)}) is None


class Translator(nn.Module):
    """Queries of one sentence, keys of another; both are of one length in the example."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, source: Tensor, target: Tensor, seen: Tensor) -> Tensor:
        places = torch.arange(target.shape[1])
        own = (self.query(target) @ self.query(target).transpose(1, 2)) + (places[:, None] - places)
        return (own.softmax(-1) @ target) @ self.key(source).transpose(1, 2) * seen[:, None]


def both(size: int = 6) -> Made:
    return Translator(), {"source": torch.rand(2, size, 8), "target": torch.rand(2, size, 8),
                          "seen": torch.ones(2, size)}  # fmt: skip


def test_two_dims_of_one_size_stay_two() -> None:
    """The text of an example in which they are equal is that of one in which they are not."""
    assert imported(both).text == imported(lambda: _longer(both())).text


def _longer(made: Made) -> Made:
    net, given = made
    return net, {**given, "target": torch.rand(2, 11, 8)}


def test_inputs_that_must_change_together_are_told_how_to_say_so() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            if x.shape[1] != mask.shape[1] and torch.compiler.is_compiling():
                raise ValueError(f"{x.shape[1]} places, and a mask of {mask.shape[1]}")
            return self.fc(x).sum(1) + mask.sum(1, keepdim=True)

    def build() -> Made:
        return Pair(), {"x": torch.rand(2, 6, 8), "mask": torch.rand(2, 6)}

    with pytest.raises(RunError) as error:
        imported(build)
    assert error.value.code == "SH600" and "at other sizes of its inputs, x [" in error.value.message
    assert "--dims" in error.value.help
    assert "mask: [batch, seq]" in imported(build, x=("batch", "seq", "d"), mask=("batch", "seq")).text
