"""The meaning of operators with sums or maxima inside on whole tensors: reductions, softmax, normalisations, losses.

Each from its formula, differentiated by torch. split_operators.py has their work on a part of a dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from shardlang.interpret.meaning.call import Call

Function = Callable[..., Tensor]


# --- reductions ---


def _floating(call: Call, x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.to(call.dtypes[0])


def _sum(call: Call, x: Tensor) -> Tensor:
    dims = call.attrs["dims"]
    return x.sum(dims) if dims else x * 1


def _mean(call: Call, x: Tensor) -> Tensor:
    dims, x = call.attrs["dims"], _floating(call, x)
    return x.mean(dims) if dims else x * 1


def _extreme(function: Callable[..., Tensor]) -> Function:
    return lambda call, x: function(x, call.attrs["dims"]) if call.attrs["dims"] else x * 1


# --- softmax, normalisations ---


def _log_softmax(call: Call, x: Tensor) -> Tensor:
    dim = call.attrs["dim"]
    shifted = x - x.detach().amax(dim, keepdim=True)
    return shifted - torch.log(torch.exp(shifted).sum(dim, keepdim=True))


def _softmax(call: Call, x: Tensor) -> Tensor:
    dim = call.attrs["dim"]
    shares = torch.exp(x - x.detach().amax(dim, keepdim=True))
    return shares / shares.sum(dim, keepdim=True)


def affine(x: Tensor, dims: Sequence[int], has: Sequence[str], given: Sequence[Tensor]) -> Tensor:
    """x * weight + bias for those that `has` names; their dims are x's `dims`."""
    shape = [size if d in dims else 1 for d, size in enumerate(x.shape)]
    for name, tensor in zip(has, given, strict=True):
        x = x * tensor.reshape(shape) if name == "weight" else x + tensor.reshape(shape)
    return x


def _layer_norm(call: Call, x: Tensor, *given: Tensor) -> Tensor:
    dims = call.attrs["dims"]
    centred = x - x.mean(dims, keepdim=True)
    variance = centred.square().mean(dims, keepdim=True)
    return affine(centred / torch.sqrt(variance + call.attrs["eps"]), dims, call.attrs["has"], given)


def _rms_norm(call: Call, x: Tensor, *given: Tensor) -> Tensor:
    dims = call.attrs["dims"]
    square = x.square().mean(dims, keepdim=True)
    return affine(x / torch.sqrt(square + call.attrs["eps"]), dims, call.attrs["has"], given)


def others(call: Call, x: Tensor) -> tuple[int, ...]:
    """The dims that batch_norm reduces: all but the channels."""
    return tuple(d for d in range(x.dim()) if d != call.attrs["dim"])


def _batch_norm(call: Call, x: Tensor, mean: Tensor, variance: Tensor, *given: Tensor) -> Tensor:
    channel = [size if d == call.attrs["dim"] else 1 for d, size in enumerate(x.shape)]
    mean, variance = mean.reshape(channel), variance.reshape(channel)
    if call.run.training:
        mean = x.mean(others(call, x), keepdim=True)
        variance = (x - mean).square().mean(others(call, x), keepdim=True)
    normal = (x - mean) / torch.sqrt(variance + call.attrs["eps"])
    return affine(normal, (call.attrs["dim"],), call.attrs["has"], given)


def moved_statistics(call: Call, x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """The running statistics after a batch: `momentum` of the way to the batch's, the variance unbiased."""
    dims, momentum = others(call, x), call.attrs["momentum"]
    x = x.detach()
    count = x.numel() // max(1, mean.numel())
    unbiased = (x - x.mean(dims, keepdim=True)).square().sum(dims) / max(count - 1, 1)
    return (1 - momentum) * mean + momentum * x.mean(dims), (1 - momentum) * variance + momentum * unbiased


# --- losses ---


def kept_labels(call: Call, label: Tensor) -> tuple[Tensor, Tensor]:
    """The labels with 0 for those to ignore, and which are kept."""
    ignore = call.attrs["ignore_index"]
    kept = torch.ones_like(label, dtype=torch.bool) if ignore is None else label != ignore
    return torch.where(kept, label, 0).long(), kept


def _kept_count(call: Call, label: Tensor) -> Tensor:
    return kept_labels(call, label)[1].sum()


def _cross_entropy(call: Call, scores: Tensor, label: Tensor, count: Tensor | None = None) -> Tensor:
    dim, smoothing = call.attrs["dim"], call.attrs["label_smoothing"]
    label, kept = kept_labels(call, label)
    logs = torch.log_softmax(scores, dim)
    picked = logs.gather(dim, label.unsqueeze(dim)).squeeze(dim)
    items = -(1.0 - smoothing) * picked
    if smoothing:  # 0 times a score that is -inf would be NaN
        items = items - smoothing * logs.mean(dim)
    return torch.where(kept, items, 0.0).sum() / (kept.sum() if count is None else count)


def _nll_loss(call: Call, scores: Tensor, label: Tensor, count: Tensor | None = None) -> Tensor:
    dim = call.attrs["dim"]
    label, kept = kept_labels(call, label)
    picked = scores.gather(dim, label.unsqueeze(dim)).squeeze(dim)
    return torch.where(kept, -picked, 0.0).sum() / (kept.sum() if count is None else count)


def squared_errors(x: Tensor, target: Tensor) -> Tensor:
    return (x - target.to(x.dtype)).square()


def logit_entropies(x: Tensor, target: Tensor) -> Tensor:
    """-log of the probability that a logit gives its label: of sigmoid(x) by `target`, of sigmoid(-x) by the rest."""
    target = target.to(x.dtype)
    return -target * functional.logsigmoid(x) - (1.0 - target) * functional.logsigmoid(-x)


STATISTICS: dict[str, Function] = {
    "sum": _sum,
    "mean": _mean,
    "amax": _extreme(torch.amax),
    "amin": _extreme(torch.amin),
    "argmax": lambda call, x: x.argmax(call.attrs["dims"][0]),
    "cumsum": lambda call, x: x.cumsum(call.attrs["dims"][0]),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "kept_count": _kept_count,
    "cross_entropy": _cross_entropy,
    "nll_loss": _nll_loss,
    "mse_loss": lambda call, x, target: squared_errors(x, target).mean(),
    "bce_with_logits": lambda call, x, target: logit_entropies(x, target).mean(),
}
