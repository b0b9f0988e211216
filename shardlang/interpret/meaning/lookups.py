"""The meaning of lookups by index, of random operators and of attention: embedding, gather,
one_hot, arange, dropout, rotary positions.

Each is written from its formula for the part that is here (`call.sizes`, `call.starts`): on one
device that is the whole. An index that lies elsewhere gives 0, so that the sum over all parts is
the lookup in the whole."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from shardlang.interpret.meaning import draws
from shardlang.interpret.meaning.call import OperatorCall
from shardlang.ops.rule import DimFactors


def place(index: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Where each index is among `size` local elements from `start` (else 0), and whether it is."""
    local = index.long() - start
    here = (local >= 0) & (local < size)
    return torch.where(here, local, 0), here


def _embedding(call: OperatorCall, ids: Tensor, table: Tensor) -> Tensor:
    rows = call.rule.operands[1][0]
    if table.shape[0] == 0:
        return table.sum() * table.new_zeros((*ids.shape, table.shape[1]))
    local, here = place(ids, call.start(rows), table.shape[0])
    padding = call.attrs["padding"]
    if padding is not None:
        marks = torch.arange(table.shape[0]) + call.start(rows) == padding
        table = torch.where(marks[:, None], table.detach(), table)
    return torch.where(here.unsqueeze(-1), table[local], torch.zeros((), dtype=table.dtype)).to(call.dtypes[0])


def _gather(call: OperatorCall, x: Tensor, index: Tensor) -> Tensor:
    dim = call.attrs["dim"]
    index = index if call.attrs["keeps"] else index.unsqueeze(dim)
    local, here = place(index, call.start(call.rule.operands[0][dim]), x.shape[dim])
    if x.shape[dim] == 0:
        found = x.sum() * x.new_zeros(index.shape)
    else:
        found = torch.where(here, x.gather(dim, local), torch.zeros((), dtype=x.dtype))
    return found if call.attrs["keeps"] else found.squeeze(dim)


def _take(call: OperatorCall, x: Tensor, index: Tensor) -> Tensor:
    """The element at each index; 0, which stands behind the last, for one that lies elsewhere."""
    dim = call.attrs["dim"]
    local, here = place(index, call.start(call.rule.operands[0][dim]), x.shape[dim])
    found = functional.pad(x.movedim(dim, -1), (0, 1))[..., torch.where(here, local, x.shape[dim])]
    return found.movedim(list(range(x.dim() - 1, found.dim())), list(range(dim, dim + index.dim())))


def _top_k(call: OperatorCall, x: Tensor) -> Tensor:
    return torch.sort(x, dim=call.attrs["dim"], descending=True, stable=True).indices.narrow(
        call.attrs["dim"], 0, call.attrs["k"]
    )


def _pick(call: OperatorCall, x: Tensor) -> Tensor:
    """The sum over the dim of what is at the index."""
    dim = call.attrs["dim"]
    start = call.start(call.rule.operands[0][dim])
    marks = torch.arange(start, start + x.shape[dim]) == call.attrs["index"]
    marks = marks.view([-1 if d == dim else 1 for d in range(x.dim())])
    return torch.where(marks, x, torch.zeros((), dtype=x.dtype)).sum(dim).to(x.dtype)


def _one_hot(call: OperatorCall, ids: Tensor) -> Tensor:
    classes = call.rule.results[0][-1]
    start, (size,) = call.start(classes), call.local((classes,))
    return (ids.unsqueeze(-1) == torch.arange(start, start + size)).long()


def _auc(call: OperatorCall, scores: Tensor, label: Tensor) -> Tensor:
    """The share of pairs of a 1 and a 0 in which the 1 has the greater score; ties count half."""
    ones, zeros = scores[label != 0].view(-1, 1), scores[label == 0].view(1, -1)
    return ((ones > zeros).double() + 0.5 * (ones == zeros).double()).mean()


def _arange(call: OperatorCall) -> Tensor:
    (dim,) = call.rule.results[0]
    start, (size,) = call.start(dim), call.local((dim,))
    return torch.arange(start, start + size)


def _block(call: OperatorCall) -> tuple[tuple[int, ...], list[int], tuple[int, ...]]:
    """The sizes of a result in the whole, where what is here begins, and its sizes here."""
    (dims,) = call.rule.results
    return call.whole(dims), [call.start(factors) for factors in dims], call.local(dims)


def _kept(call: OperatorCall, x: Tensor, dims: tuple[DimFactors, ...]) -> Tensor:
    """0 for dropped elements (of the first dims of x), 1 / (1 - p) elsewhere; all 1 in `eval`."""
    p, shape = call.attrs["p"], x.shape[: len(dims)]
    if not call.run.training or p == 0:
        return x.new_ones(shape)
    starts = [call.start(factors) for factors in dims]
    return draws.kept(call.key, p, call.whole(dims), starts, shape).to(x.dtype) / (1.0 - p)


LOOKUPS: dict[str, Callable[..., Tensor]] = {
    "auc": _auc,
    "embedding": _embedding,
    "gather": _gather,
    "pick": _pick,
    "scanned": _pick,
    "take": _take,
    "top_k": _top_k,
    "rand": lambda call: draws.uniform(call.key, *_block(call)),
    "randn": lambda call: draws.normal(call.key, *_block(call)),
    "one_hot": _one_hot,
    "arange": _arange,
    "dropout": lambda call, x: x * _kept(call, x, call.rule.operands[0]),
    "dropout2d": lambda call, x: x * _kept(call, x, call.rule.operands[0][:2])[..., None, None],
}


def _attention(call: OperatorCall, q: Tensor, k: Tensor, v: Tensor, *further: Tensor) -> Tensor:
    """Weights exp(score) over their sum along the seen keys, and a sink; 0 if a query sees none."""
    given, attrs = dict(zip(call.attrs["given"], further, strict=True)), call.attrs
    if q.dim() > 2:
        sharing = q.shape[-3] // max(1, k.shape[-3])
        k, v = (x.repeat_interleave(sharing, -3) for x in (k, v))
    scale, cap = attrs["scale"], attrs["softcap"]
    scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    if "bias" in given:
        scores = scores + _rows(call, given["bias"], q.shape[-2])
    seen = _seen(call, given.get("keep"), q, k)
    scores = torch.where(seen, scores, -math.inf)
    greatest, sinks = scores.detach().amax(-1, keepdim=True), given.get("sinks")
    if sinks is not None:
        greatest = torch.maximum(greatest, sinks.detach()[..., None, None])
    greatest = torch.where(greatest > -math.inf, greatest, 0.0)
    weights = torch.exp(scores - greatest)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks[..., None, None] - greatest)
    # Of the weights a share p falls out, each by the number of its index among all.
    pairs = (*call.rule.operands[0][:-1], call.rule.operands[1][-2])
    return (weights / torch.where(total > 0, total, 1.0) * _kept(call, weights, pairs)) @ v


def _rows(call: OperatorCall, bias: Tensor, queries: int) -> Tensor:
    """A bias of the queries that are here, where it is whole and they are not."""
    if bias.dim() < 2 or bias.shape[-2] in (1, queries):
        return bias
    return bias.narrow(-2, call.start(call.rule.operands[0][-2]), queries)


def _seen(call: OperatorCall, keep: Tensor | None, q: Tensor, k: Tensor) -> Tensor:
    """Which keys [.., keys] each query sees."""
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    apart = (call.start(call.rule.operands[0][-2]) + torch.arange(q.shape[-2]))[:, None] - torch.arange(k.shape[-2])
    if call.attrs["causal"]:
        seen = apart >= 0
    if call.attrs["window"] is not None:
        seen = seen & (apart.abs() < call.attrs["window"])
    if keep is None:
        return seen
    return seen & (keep[..., None, None, :] if q.dim() > 2 else keep)


def _rotary(call: OperatorCall, x: Tensor) -> Tensor:
    """Pairs as complex numbers, times e^(i * angle)."""
    over, along, near = call.attrs["over"], call.attrs["along"], call.attrs["pairs"] == "neighbours"
    width = call.attrs["part"] or x.shape[over]
    half, size = width // 2, x.shape[along]
    places = call.start(call.rule.operands[0][along]) + torch.arange(size, dtype=torch.float64)
    angles = places[:, None] / call.attrs["base"] ** (torch.arange(half, dtype=torch.float64) / half)
    angles = angles * torch.tensor(call.attrs["scales"] or [1.0] * half, dtype=torch.float64)
    lined = x.movedim((along, over), (-2, -1)).to(torch.float64)
    turning, rest = lined[..., :width], lined[..., width:]
    first, second = (turning[..., 0::2], turning[..., 1::2]) if near else (turning[..., :half], turning[..., half:])
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    both = (turned.real, turned.imag)
    made = torch.stack(both, -1).flatten(-2) if near else torch.cat(both, -1)
    return torch.cat((made, rest), -1).movedim((-2, -1), (along, over)).to(x.dtype)


ATTENTION: dict[str, Callable[..., Tensor]] = {"attention": _attention, "rotary": _rotary}
