"""The meaning of operators with sums or maxima inside on whole tensors: reductions, softmax,
normalisations, losses.

Each from its formula, differentiated by torch. Means are sums over the count of the whole, so that
the sum over all parts is the mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from shardlang.interpret.meaning.call import OperatorCall
from shardlang.interpret.meaning.lookups import place
from shardlang.ops.rule import DimFactors

Function = Callable[..., Tensor]


# --- reductions ---


def _count(call: OperatorCall, dims: Sequence[DimFactors]) -> int:
    """How many elements some tensor dims have in the whole."""
    return math.prod(call.whole(tuple(dims)))


def _sum(call: OperatorCall, x: Tensor) -> Tensor:
    dims = call.attrs["dims"]
    return x.sum(dims) if dims else x * 1


def _mean(call: OperatorCall, x: Tensor) -> Tensor:
    dims, x = call.attrs["dims"], x.to(call.dtypes[0])
    return x.sum(dims) / _count(call, [call.rule.operands[0][d] for d in dims]) if dims else x * 1


def _extreme(function: Callable[..., Tensor]) -> Function:
    return lambda call, x: function(x, call.attrs["dims"]) if call.attrs["dims"] else x * 1


def _logsumexp(call: OperatorCall, x: Tensor) -> Tensor:
    dims = call.attrs["dims"]
    top = x.detach().amax(dims, keepdim=True) if dims else x.detach()
    return torch.exp(x - top).sum(dims).log() + top.sum(dims) if dims else x * 1


def _var(call: OperatorCall, x: Tensor) -> Tensor:
    dims = call.attrs["dims"]
    count = math.prod(x.shape[d] for d in dims)
    return (x - x.mean(dims, keepdim=True)).square().sum(dims) / (count - call.attrs["correction"])


# --- softmax, normalisations ---


def _log_softmax(call: OperatorCall, x: Tensor) -> Tensor:
    dim = call.attrs["dim"]
    shifted = x - x.detach().amax(dim, keepdim=True)
    return shifted - torch.log(torch.exp(shifted).sum(dim, keepdim=True))


def _softmax(call: OperatorCall, x: Tensor) -> Tensor:
    dim = call.attrs["dim"]
    shares = torch.exp(x - x.detach().amax(dim, keepdim=True))
    return shares / shares.sum(dim, keepdim=True)


def affine(x: Tensor, dims: Sequence[int], has: Sequence[str], given: Sequence[Tensor]) -> Tensor:
    """x * weight + bias for those that `has` names; their dims are x's `dims`."""
    shape = [size if d in dims else 1 for d, size in enumerate(x.shape)]
    for name, tensor in zip(has, given, strict=True):
        x = x * tensor.reshape(shape) if name == "weight" else x + tensor.reshape(shape)
    return x


def _layer_norm(call: OperatorCall, x: Tensor, *given: Tensor) -> Tensor:
    dims = call.attrs["dims"]
    centred = x - x.mean(dims, keepdim=True)
    variance = centred.square().mean(dims, keepdim=True)
    return affine(centred / torch.sqrt(variance + call.attrs["eps"]), dims, call.attrs["has"], given)


def _rms_norm(call: OperatorCall, x: Tensor, *given: Tensor) -> Tensor:
    dims = call.attrs["dims"]
    square = x.square().mean(dims, keepdim=True)
    return affine(x / torch.sqrt(square + call.attrs["eps"]), dims, call.attrs["has"], given)


def _others(call: OperatorCall, x: Tensor) -> tuple[int, ...]:
    """The dims that batch_norm reduces: all but the channels."""
    return tuple(d for d in range(x.dim()) if d != call.attrs["dim"])


def _batch_norm(call: OperatorCall, x: Tensor, mean: Tensor, variance: Tensor, *given: Tensor) -> Tensor:
    channel = [size if d == call.attrs["dim"] else 1 for d, size in enumerate(x.shape)]
    mean, variance = mean.reshape(channel), variance.reshape(channel)
    if call.run.training:
        mean = x.mean(_others(call, x), keepdim=True)
        variance = (x - mean).square().mean(_others(call, x), keepdim=True)
    normal = (x - mean) / torch.sqrt(variance + call.attrs["eps"])
    return affine(normal, (call.attrs["dim"],), call.attrs["has"], given)


def by_kernel(call: OperatorCall, x: Tensor, *given: Tensor) -> Tensor:
    """batch_norm by torch's kernel, which does not centre on its way back: what it leaves of a
    gradient that is zero in truth grows with the mean over the deviation."""
    at = call.attrs["dim"]
    if not call.run.training or x.numel() <= x.shape[at]:
        return _batch_norm(call, x, *given)
    normal = functional.batch_norm(x.transpose(1, at), None, None, training=True, eps=call.attrs["eps"])
    return affine(normal.transpose(1, at), (at,), call.attrs["has"], given[2:])


def moved_statistics(
    call: OperatorCall, x: Tensor, mean: Tensor, variance: Tensor, *given: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The running statistics after a batch: `momentum` of the way to the batch's, unbiased."""
    dims, momentum = _others(call, x), call.attrs["momentum"]
    x, mean, variance = x.detach(), mean.detach(), variance.detach()
    count = x.numel() // max(1, mean.numel())
    unbiased = (x - x.mean(dims, keepdim=True)).square().sum(dims) / max(count - 1, 1)
    return (1 - momentum) * mean + momentum * x.mean(dims), (1 - momentum) * variance + momentum * unbiased


# --- losses ---


def _kept_labels(call: OperatorCall, label: Tensor) -> tuple[Tensor, Tensor]:
    """The labels with 0 for those to ignore, and which are kept."""
    ignore = call.attrs["ignore_index"]
    kept = torch.ones_like(label, dtype=torch.bool) if ignore is None else label != ignore
    return torch.where(kept, label, 0).long(), kept


def _picked(call: OperatorCall, scores: Tensor, label: Tensor) -> Tensor:
    """The score of each label; 0 where its class is elsewhere."""
    dim = call.attrs["dim"]
    local, here = place(label.unsqueeze(dim), call.start(call.rule.operands[0][dim]), scores.shape[dim])
    if not scores.shape[dim]:
        return scores.sum() * scores.new_zeros(label.shape)
    return torch.where(here, scores.gather(dim, local), 0.0).squeeze(dim)


def _averaged(call: OperatorCall, items: Tensor, kept: Tensor, count: Tensor | None) -> Tensor:
    """The sum of the kept items over the count of the whole, given if others have parts."""
    whole = kept.sum() if call.attrs["ignore_index"] is not None else _count(call, call.rule.operands[1])
    return torch.where(kept, items, 0.0).sum() / (whole if count is None else count)


def _cross_entropy(call: OperatorCall, scores: Tensor, label: Tensor, count: Tensor | None = None) -> Tensor:
    dim, smoothing = call.attrs["dim"], call.attrs["label_smoothing"]
    label, kept = _kept_labels(call, label)
    logs = torch.log_softmax(scores.to(call.dtypes[0]), dim)
    items = -(1.0 - smoothing) * _picked(call, logs, label)
    if smoothing:  # 0 times a score that is -inf would be NaN
        items = items - smoothing * logs.mean(dim)
    return _averaged(call, items, kept, count)


def _chunked(call: OperatorCall, label: Tensor, hidden: Tensor, weight: Tensor, *more: Tensor) -> Tensor:
    """Chunks mean nothing on whole tensors: the cross-entropy of a product and its bias."""
    rows, weights = call.rule.operands[1:3]
    weight, classes = (weight, weights[0]) if call.attrs["dim"] == 0 else (weight.t(), weights[1])
    scores = hidden @ weight.t()
    if call.attrs["bias"]:
        scores, more = scores + more[0], more[1:]
    rule = replace(call.rule, operands=((*rows[:-1], classes), call.rule.operands[0]))
    plain = replace(call, rule=rule, attrs={**call.attrs, "dim": len(rows) - 1})
    return _cross_entropy(plain, scores, label, *more)


def _nll_loss(call: OperatorCall, scores: Tensor, label: Tensor, count: Tensor | None = None) -> Tensor:
    label, kept = _kept_labels(call, label)
    return _averaged(call, -_picked(call, scores, label), kept, count)


def _mean_of(items: Callable[[Tensor, Tensor], Tensor]) -> Function:
    def mean(call: OperatorCall, x: Tensor, target: Tensor) -> Tensor:
        return items(x, target.to(x.dtype)).sum() / _count(call, call.rule.operands[0])

    return mean


def _logit_entropies(x: Tensor, target: Tensor) -> Tensor:
    """-log of the probability of a label: of sigmoid(x) by `target`, of sigmoid(-x) by the rest."""
    return -target * functional.logsigmoid(x) - (1.0 - target) * functional.logsigmoid(-x)


STATISTICS: dict[str, Function] = {
    "sum": _sum,
    "logsumexp": _logsumexp,
    "var": _var,
    "mean": _mean,
    "amax": _extreme(torch.amax),
    "amin": _extreme(torch.amin),
    "argmax": lambda call, x: (x.to(torch.uint8) if x.dtype == torch.bool else x).argmax(call.attrs["dims"][0]),
    "cumsum": lambda call, x: x.cumsum(call.attrs["dims"][0]),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "kept_count": lambda call, label: _kept_labels(call, label)[1].sum(),
    "cross_entropy": _cross_entropy,
    "chunked_cross_entropy": _chunked,
    "nll_loss": _nll_loss,
    "mse_loss": _mean_of(lambda x, target: (x - target).square()),
    "bce_with_logits": _mean_of(_logit_entropies),
}
