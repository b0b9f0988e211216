"""Words of the language, each in a module that is imported: `import_module` compares values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from shardlang.importing.imported import Imported, Wanted, import_module
from tests.importing.test_import import EXACT

Forward = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    """A layer, and a function of x and what the layer makes of it."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.fc(x))


def bucketed(x: Tensor, y: Tensor) -> Tensor:
    """Distances of positions, as T5 computes its buckets."""
    places = torch.arange(x.shape[1])
    away = (places[None, :] - places[:, None]).abs()
    far = torch.min((torch.log(away.float() + 1) * 2).long(), torch.full_like(away, 3))
    return y @ y.transpose(1, 2) + torch.where(away < 2, away, far)


def index(x: Tensor, **other: Any) -> Tensor:
    """The buckets of relative positions as T5 has them, six of each side and distances up to 20; `other` numbers."""
    given = {"exact": 3, "least": 3, "log": math.log(20 / 3), "rest": 3, "last": 5, "side": 6, "ahead": 0,
             "type": torch.float32, "mode": None, "behind": None, **other}  # fmt: skip
    places = torch.arange(x.shape[1])
    away = places[None, :] - places[:, None]
    distance = away.abs() if given["behind"] is None else -torch.min(away, torch.full_like(away, given["behind"]))
    far = torch.div(distance.to(given["type"]), given["exact"], rounding_mode=given["mode"])
    far = (torch.log(far) / given["log"] * given["rest"]).long() + given["least"]
    far = torch.min(far, torch.full_like(away, given["last"]))
    near = torch.where(distance < given["exact"], distance, far)
    return near if given["behind"] is not None else (away > given["ahead"]).long() * given["side"] + near


def distances(**other: Any) -> Forward:
    """Scores that buckets of relative positions are added to."""
    return lambda x, y: y @ y.mT + index(x, **other)


def places(x: Tensor) -> Tensor:
    """Which places are not behind others, or two places away."""
    row = torch.arange(x.shape[1])[:, None]
    return (row >= row.T) & ((row - row.T) != 2)


def shifted(x: Tensor, y: Tensor) -> Tensor:
    """Scores of distances, each row moved by one place more, as Transformer-XL moves them."""
    scores = F.pad(y @ y.mT, (1, 0))
    return scores.view(scores.shape[0], scores.shape[2], scores.shape[1])[:, 1:].reshape(y.shape[0], -1)


def written(x: Tensor, y: Tensor) -> Tensor:
    """A row that is written over, and a part that shows it."""
    z = y * 2
    part = z[:, 1:3]
    z[:, 2] = x[:, 0]
    return z * x + part.sum(1, keepdim=True)


def joined(x: Tensor, y: Tensor) -> Tensor:
    both = x.new_empty(*x.shape[:2], 16)
    both[..., :8].copy_(y)
    both[..., 8:] = x
    return both * 2


def between(x: Tensor, y: Tensor) -> Tensor:
    wide = torch.zeros_like(y)
    wide[..., 2:7] = y[..., :5]
    return wide + x


def turned(x: Tensor, y: Tensor) -> Tensor:
    z = y * 1.5
    z.transpose(1, 2)[:, 3] = x[..., 0]
    z.unflatten(-1, (2, 4))[:, :, 1, 2:].mul_(x[..., :2])
    return z


def hidden(x: Tensor, y: Tensor) -> Tensor:
    """Which places are not among the greatest."""
    mask = torch.ones(x.shape, dtype=torch.bool).scatter(-1, x.topk(2, dim=-1).indices, False)
    return y * (~mask & (x > 0.1))


def cut(x: Tensor, y: Tensor) -> Tensor:
    """What a mask shows is written over: by a number, and rows of it by those of one number each."""
    z = y * 2
    z[x > 0.5] = 0.25
    z[x[..., 0] > 0.5] = x[0, 0]
    return z


def without_gradient(x: Tensor, y: Tensor) -> Tensor:
    """A part without gradient, which gives back what it is given."""
    with torch.no_grad():
        share, y = y.softmax(-1), y.to(y.dtype)
    return share * y


def complex_numbers(x: Tensor, y: Tensor) -> Tensor:
    """Pairs of neighbours that are turned by their place, as DeepSeek and Llama 4 write it."""
    angles = torch.arange(x.shape[1])[:, None] * 500.0 ** (-torch.arange(4) / 4)
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (4, 2))) * turns).flatten(-2)


def scaled(x: Tensor, y: Tensor) -> Tensor:
    """Attention whose queries are scaled, and the scores again: together as usual."""
    q, k = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in (y * 0.25, y + x))
    return F.scaled_dot_product_attention(q, k, k, scale=2.0).transpose(1, 2).flatten(2)


def places_behind(x: Tensor) -> Tensor:
    row = torch.arange(x.shape[1])
    return row[:, None] < row


# What is computed -> a part of the text.
WORDS: dict[str, tuple[Forward, str]] = {
    "erf": (lambda x, y: torch.erf(y), "erf("),
    "softplus": (lambda x, y: F.softplus(y), "softplus("),
    "elu": (lambda x, y: F.elu(y), "elu("),
    "expm1": (lambda x, y: torch.expm1(y), "exp(fc(x)) - 1.0"),
    "floor": (lambda x, y: y * ((10 * x).long() // 3), "// 3"),
    "remainder": (lambda x, y: y * ((10 * x).long() % 3), "% 3"),
    "clamp": (lambda x, y: y.clamp(-0.1, 0.2), "|> maximum(-0.1) |> minimum(0.2)"),
    "bounds": (lambda x, y: torch.max(y, x).clamp_min(0.5), "|> maximum(x) |> maximum(0.5)"),
    "truths": (lambda x, y: torch.where((x > 0.2) & ~(x > 0.8) | (x < 0.1), y, 0.0),
               "x > 0.2 and not x > 0.8 or x < 0.1"),
    "cast": (lambda x, y: y * (x > 0.5).float(), "cast(x > 0.5, f32)"),
    "one place": (lambda x, y: y[:, 0] + y[:, -1], "pick("),
    "steps": (lambda x, y: y[..., ::2] * y[..., 1::2], "hidden = 0..hidden..2"),
    "from the end": (lambda x, y: y[:, 1:] - y[:, :-1], "0..seq - 1"),
    "flip": (lambda x, y: torch.flip(y, [1]) * x, "flip("),
    "roll": (lambda x, y: torch.roll(y, 2, 1) * x, "roll("),
    "stack": (lambda x, y: torch.stack([x, y], dim=-1).sum(-1), "stack("),
    "pad": (lambda x, y: F.pad(y, (0, 0, 2, 1))[:, 1:], "(2, 1)"),
    "top k": (lambda x, y: y.topk(2, dim=-1).values.softmax(-1), "top_k("),
    "greatest": (lambda x, y: y.max(dim=1).values, "amax("),
    "pairs": (lambda x, y: (y.transpose(1, 2) @ x)[:, *torch.tril_indices(8, 8, -1)],
              "row * features + column, over = hidden * features\n"),
    "how many pairs": (lambda x, y: (y.mT @ x)[:, *torch.tril_indices(8, 8, -1)],
                       "  dim pairs = hidden * (hidden - 1) / 2\n"),
    "scaled queries": (scaled, " = attention(q, k, k)\n"),
    "complex numbers": (complex_numbers,
                        'rotary(fc(x), over = head_dim, along = seq, base = 500.0, pairs = "neighbours")'),
    "least": (lambda x, y: y.topk(2, dim=-1, largest=False).values, "top_k(-"),
    "first of equals": (lambda x, y: y.gather(2, y.sigmoid().floor().topk(3, dim=-1).indices), "gather("),
    "written where a mask is": (cut, "where(x > 0.5, 0.25, fc(x) * 2)"),
    "without gradient": (without_gradient, "return detach(softmax(h, over = out)) * h"),
    "gather": (lambda x, y: y.gather(2, (7 * x[..., :1]).long()), "gather("),
    "take": (lambda x, y: y.sum((0, 1))[(7 * x).long()], "take("),
    "expand": (lambda x, y: y.sum(0, keepdim=True).expand(x.shape[0], -1, -1) * x, "expand("),
    "repeat": (lambda x, y: y.unsqueeze(2).repeat(1, 1, 3, 1).mean(2), "expand("),
    "first true": (lambda x, y: y * (x > 0.5).int().argmax(-1, keepdim=True), "argmax(x > 0.5, over = features)"),
    "numbers of 32 bits": (lambda x, y: y * ((x > 0.5).int().cumsum(1).int() * 2).long(),
                           "(x > 0.5, i64), over = seq) * 2"),
    "interleave": (lambda x, y: y.repeat_interleave(2, dim=-1).square(), "expand("),
    "einsum": (lambda x, y: torch.einsum("bsd,bte->bde", x, y), "einsum("),
    "triangle": (lambda x, y: (y @ x.transpose(1, 2)).tril(), "where("),
    "buckets": (bucketed, "dim key = seq"),
    "buckets of distances": (distances(), " + distance_buckets(away, 12, max_distance = 20)\n"),
    "buckets of one side": (distances(behind=0), "near = distance_buckets(away, 6, max_distance = 20, both = false)\n"),
    "floored": (lambda x, y: y * (2 * x).floor(), "// 1.0"),
    "log1p": (lambda x, y: torch.log1p(y.square()), "log(square(fc(x)) + 1.0)"),
    "reciprocal": (lambda x, y: y * torch.reciprocal(x + 1), "1.0 / (x + 1)"),
    "hardtanh": (lambda x, y: F.hardtanh(y, -0.1, 0.2), "|> maximum(-0.1) |> minimum(0.2)"),
    "hardsigmoid": (lambda x, y: F.hardsigmoid(9 * y), "/ 6.0"),
    "hardswish": (lambda x, y: F.hardswish(9 * y), ", 6.0)"),
    "leaky relu": (lambda x, y: F.leaky_relu(y, 0.2), "maximum("),
    "mish": (lambda x, y: F.mish(y), "tanh(softplus("),
    "glu": (lambda x, y: F.glu(torch.cat([y, x], -1), -1), "sigmoid("),
    "shifted rows": (shifted, "relabel("),
    "padding of one place": (lambda x, y: F.pad(y.sum(1, keepdim=True), (0, 0, 2, 0)).flatten(1), "parts = (2, 0)\n"),
    "log sigmoid": (lambda x, y: F.logsigmoid(y), "-softplus(-"),
    "logsumexp": (lambda x, y: y.logsumexp(-1), "logsumexp("),
    "left out at random": (lambda x, y: x + y / 0.9 * (0.9 + torch.rand(x.shape[0], 1, 1)).floor(), "rand("),
    "marks": (lambda x, y: y * torch.zeros_like(x).scatter(-1, x.topk(2, dim=-1).indices, 1.0), "one_hot("),
    "hidden by infinity": (lambda x, y: y.masked_fill(x > 0.5, -math.inf).softmax(-1), "-3.4028234663852886e+38"),
    "parts that are cut": (lambda x, y: y[..., 2:].unflatten(-1, (2, 3)).transpose(-1, -2), "relabel(slice("),
    "norm": (lambda x, y: F.normalize(y, dim=-1), "sum(square(h), over = out)"),
    "norm of absolute values": (lambda x, y: y / y.norm(p=1, dim=1, keepdim=True), "abs("),
    "variance": (lambda x, y: y - x.var(-1, unbiased=False, keepdim=True) + y.std(1, keepdim=True), "correction = 0"),
    "other names": (lambda x, y: y @ y.transpose(1, 2) * ~places(x).contiguous(), "mask3 = not mask2\n"),
    "moved by one": (lambda x, y: F.pad(y, (0, 0, 1, -1)) * x, "seq = (1, 0)"),
    "greatest of one": (lambda x, y: y * y.unsqueeze(1).topk(1, dim=1).values.sum(1), "return h * h"),
    "share of one": (lambda x, y: y * y.sum(-1, keepdim=True).softmax(-1), "return fc(x)"),
    "a size that stays": (lambda x, y: F.interpolate(y.unsqueeze(1), (y.shape[1], 8), mode="bicubic").squeeze(1) * x,
                          "fc(x) * x"),
    "written into a part": (written, "concat(\n      slice(z, seq = 0..2), rearrange(pick(x, seq = 0) -> "),
    "written side by side": (joined, "concat(fc(x), x, over = hidden)"),
    "written between zeros": (between, "pad(hidden = (2, 1))"),
    "written through views": (turned, "pick(x, features = 0)"),
    "chosen are 0": (lambda x, y: y.scatter(-1, x.topk(2, dim=-1).indices, 0.0), "!= 0"),
    "chosen are hidden": (hidden, "not "),
    "rows of one place": (lambda x, y: torch.cat([y.sum(1, keepdim=True), x.amax(1, keepdim=True)], 1) * y[:, 2:4],
                          "stack("),
    "truths that are given": (lambda x, y: y * torch.where(x > 0.5, True, y > 0), "x > 0.5 or "),
    "falsehoods that are given": (lambda x, y: y * torch.where(x > 0.5, y > 0, False), "x > 0.5 and "),
    "what a mask hides": (lambda x, y: (y @ x.mT).masked_fill(places_behind(x), 0.0), "arange("),
    "one place more": (lambda x, y: torch.cat([y @ y.mT, y.sum(-1, keepdim=True)], -1).softmax(-1)[..., :-1] @ x,
                       "0..key)"),
    "a part of a product": (lambda x, y: y.unflatten(-1, (2, 4)).transpose(1, 2).flatten(1, 2)[:, 3], "= d * seq"),
    "a part of a sum": (lambda x, y: torch.cat([y[..., :2], y[..., 4:6]], -1).unflatten(-1, (2, 2)).sum(-1), "sum("),
}  # fmt: skip


def net(name: str) -> Imported:
    return import_module(lambda: (Net(WORDS[name][0]), {"x": torch.rand(2, 5, 8)}), Wanted("words:net", {}))


class Frozen(nn.Module):
    """A table that is not trained, beside one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.ones(8), requires_grad=False)
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + self.places


class Turned(nn.Module):
    """Pairs of features that are turned, as RoFormer writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return y + torch.stack([-y[..., 1::2], y[..., ::2]], dim=-1).reshape_as(y)


class Standard(nn.Conv2d):
    """A convolution whose weight is normalised, as BiT has it."""

    def __init__(self) -> None:
        super().__init__(4, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(self.weight.view(1, 6, -1), None, None, training=True, momentum=0.0, eps=1e-6)
        return F.conv2d(x, weight.view_as(self.weight))


def normed() -> nn.Module:
    """A convolution whose weight is a direction and a length, as those of positions in models of speech."""
    conv = weight_norm(nn.Conv1d(4, 6, 3, padding=1), dim=2)
    nn.init.ones_(conv.parametrizations.weight.original0)
    return conv


class Recurrent(nn.Module):
    """What a layer that goes through a sequence gives behind each step, beside what it keeps of the last."""

    def __init__(self, kind: type[nn.RNNBase], **settings: Any) -> None:
        super().__init__()
        self.rnn = kind(6, 8, **settings)

    def forward(self, x: Tensor) -> Tensor:
        output, last = self.rnn(x)
        return output * (last if isinstance(last, Tensor) else last[1])[-1].sum()


# Layers on images or sequences of channels -> their line, and a part of what is computed.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 10), "= Conv1d(channels, out, 3, padding = 1)"),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 2, stride=2), (2, 4, 5, 5),
                   "= ConvTranspose2d(channels, out, 2, stride = 2)"),
    "transposed along one": (lambda: nn.ConvTranspose1d(4, 6, 3, bias=False), (2, 4, 9),
                             "= ConvTranspose1d(channels, out, 3, bias = false)"),
    "one channel": (lambda: nn.Sequential(nn.Unflatten(1, (1, 10)), nn.Conv1d(1, 6, 3)), (2, 10), "conv1d_1("),
    "a weight of one norm": (normed, (2, 4, 10),
                             "sum(square(original1), over = (out2, channels))"),
    "groups": (lambda: nn.GroupNorm(2, 4), (2, 4, 5, 5), "group_norm(x, 2, weight, bias"),
    "max pool": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.MaxPool1d(2)), (2, 4, 10), "max_pool1d(conv1d_0(x), 2)"),
    "same sizes": (lambda: nn.Conv1d(4, 6, 5, padding="same", dilation=2), (2, 4, 10), "padding = 4"),
    "same sizes, an even window": (lambda: nn.Conv1d(4, 6, 4, padding="same"), (2, 4, 10), "length = (1, 2)"),
    "no padding": (lambda: nn.Conv2d(4, 6, 2, padding="valid"), (2, 4, 5, 5), "= Conv2d(channels, out, 2)"),
    "mean of what is there": (lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.AvgPool2d(3, 1, 1, count_include_pad=False)),
                              (2, 4, 5, 5), "avg_pool2d(expand(1.0 -> "),
    "whole windows": (lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.MaxPool2d(2, 1, ceil_mode=True)), (2, 4, 5, 5),
                      "max_pool2d(conv2d_0(x), 2, stride = 1)"),
    "means of parts": (lambda: nn.Sequential(nn.Conv2d(4, 6, 1), nn.AdaptiveAvgPool2d(2)), (2, 4, 6, 6),
                       "adaptive_avg_pool2d("),
    "turns": (lambda: nn.Sequential(Turned(), nn.Linear(8, 4)), (2, 5, 8), "out * parts"),
    "a weight by its own numbers": (Standard, (2, 4, 9, 9), "relabel(weight -> [out, channels, kernel, kernel2])"),
    "gru": (lambda: Recurrent(nn.GRU, batch_first=True), (2, 5, 6), "output, last = rnn(x, zeros)"),
    "lstm": (lambda: Recurrent(nn.LSTM), (2, 5, 6), "memory = rnn(rearrange(x -> [seq, batch, features]), zeros, "),
    "two layers": (lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.1), (2, 5, 6), "layer rnn_1 = LSTM(out, out)"),
    "frozen": (Frozen, (2, 8), "state places: [out] = ones()"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_imported(name: str) -> None:
    build, shape, part = LAYERS[name]

    def factory() -> tuple[nn.Module, dict[str, Tensor]]:
        return nn.Sequential(build()), {"input": torch.rand(shape)}

    found = import_module(factory, Wanted("words:layer", {}))
    assert found.report["largest difference"] <= EXACT
    assert part in found.text, found.text


@pytest.mark.parametrize("name", WORDS)
def test_a_word_is_imported(name: str) -> None:
    found = net(name)
    assert found.report["largest difference"] <= EXACT
    assert WORDS[name][1] in found.text, found.text


# A number that T5's buckets do not have beside the others; the last is one of no whole distance.
@pytest.mark.parametrize(
    "other",
    [{"exact": 2}, {"least": 2}, {"rest": 4}, {"last": 6}, {"side": 5}, {"ahead": 1}, {"type": torch.float64},
     {"mode": "floor"}, {"log": math.log(20.01 / 3)}, {"behind": -1}],
    ids=str,
)  # fmt: skip
def test_other_buckets_are_written_out(other: dict[str, Any]) -> None:
    def factory() -> tuple[nn.Module, dict[str, Tensor]]:
        return Net(distances(**other)), {"x": torch.rand(2, 5, 8)}

    found = import_module(factory, Wanted("words:net", {}))
    assert found.report["largest difference"] <= EXACT
    assert "distance_buckets(" not in found.text, found.text
    assert "log(" in found.text, found.text


class Biased(nn.Module):
    """Scores with a bias from a table of so many rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.fc, self.table = nn.Linear(8, 8), nn.Embedding(rows, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return y @ y.mT + self.table(index(x)).squeeze(-1)


@pytest.mark.parametrize(("rows", "buckets"), [(12, "buckets"), (14, "12")])
def test_buckets_are_as_many_as_rows_of_their_table(rows: int, buckets: str) -> None:
    found = import_module(lambda: (Biased(rows), {"x": torch.rand(2, 5, 8)}), Wanted("words:net", {}))
    assert found.report["largest difference"] <= EXACT
    assert f"distance_buckets(away, {buckets}, max_distance = 20)" in found.text, found.text
