"""What each operator means, in numpy: a third text beside the interpreter's and the emitter's, from the formulas alone.

`ORACLES` gives, per operator, calls of several shapes with what they give. Derivatives are not written down: they are
taken from these functions by differences (test_oracles.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.ops.oracle import Array, below, falls_out, oracle, positive, truth
from tests.ops.oracles_images import IMAGES
from tests.ops.oracles_more import MORE

# --- elementwise ---

SHAPES = ("b=5", "b=4 h=6", "b=2 1 h=2*e=3", "")
UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": lambda x: -1.0 * x,
    "relu": lambda x: np.where(x > 0, x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "tanh": lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "exp": np.exp,
    "square": lambda x: x * x,
    "abs": np.abs,
    "sin": np.sin,
    "cos": np.cos,
    "gelu": lambda x: x * 0.5 * (1.0 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2.0))),
    **dict.fromkeys(("transfer", "to_device", "to_host"), lambda x: x),
}
POSITIVE = {"log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: x**-0.5}
PAIRS = (("b=4 h=6", "b h"), ("b=4 s=2 h=6", "h"), ("h=6", "b=4 s=2 h"), ("b=4 1 n=2*e=3", "s=2 n*e"), ("b=4", ""))
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip
COMPARED = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def small(shape: tuple[int, ...]) -> torch.Tensor:
    """Numbers of which several are equal."""
    return torch.randint(0, 3, shape).double()


def curved(x: Array) -> Array:
    """gelu by a hyperbolic tangent."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


ELEMENTWISE = (
    *[oracle(n, s, means=f) for n, f in UNARY.items() for s in SHAPES],
    *[oracle(n, s, means=f, make={0: positive}) for n, f in POSITIVE.items() for s in SHAPES],
    *[oracle("gelu", s, means=curved, approximate="tanh") for s in SHAPES],
    *[oracle(n, *p, means=f) for n, f in BINARY.items() for p in PAIRS],
    *[oracle("div", *p, means=np.divide, make={1: positive}) for p in PAIRS],
    *[oracle("pow", *p, means=np.power, make={0: positive}) for p in PAIRS],
    *[oracle(n, *p, means=f, make={0: small, 1: small}) for n, f in COMPARED.items() for p in PAIRS],
    *[oracle("where", "bool b=4 h=6", *p, means=np.where, make={0: truth}) for p in (("b h", "h"), ("h", "b h"))],
    oracle("where", "bool h=6", "b=4 1 h", "s=2 h", means=np.where, make={0: truth}),
    *[oracle("detach", s, means=lambda x: x) for s in SHAPES],
    *[oracle("cast", s, means=lambda x: x.astype(np.float32), smooth=lambda x: x, dtype="f32") for s in SHAPES],
    oracle("cast", "b=4 h=6", means=lambda x: np.trunc(x).astype(np.int64), dtype="i64"),
    oracle("cast", "bool b=4", means=lambda x: x.astype(np.float64), dtype="f64", make={0: truth}),
)

# --- sums of products ---


def product(letters: str) -> Callable[..., Array]:
    return lambda *xs: np.einsum(letters, *xs)


PRODUCTS = (
    oracle("matmul", "b=4 k=8", "k n=6", means=product("bk,kn->bn")),
    oracle("matmul", "c=2 b=4 k=8", "k n=6", means=product("cbk,kn->cbn")),
    oracle("matmul", "c=2 b=4 k=8", "c k n=6", means=product("cbk,ckn->cbn")),
    oracle("matmul", "d=3 c=2 b=4 k=5", "c k n=6", means=product("dcbk,ckn->dcbn")),
    oracle("matmul", "k=8", "k n=6", means=product("k,kn->n")),
    oracle("matmul", "b=4 k=8", "k", means=product("bk,k->b")),
    oracle("matmul", "k=8", "k", means=product("k,k->")),
    oracle("einsum", "b=2 s=4 i=8", "o=6 i", arrow="b s o", means=product("bsi,oi->bso")),
    oracle("einsum", "b=2 h=4 s=3 e=2", "b h t=5 e", arrow="b h s t", means=product("bhse,bhte->bhst")),
    oracle("einsum", "b=2 s=4 i=8", "s i", arrow="i b", means=product("bsi,si->ib")),
    oracle("einsum", "b=4 i=6", "i j=2", "j b", arrow="b", means=product("bi,ij,jb->b")),
    oracle("einsum", "b=4 i=6", arrow="i", means=product("bi->i")),
    oracle("einsum", "b=4 h=4*e=2", "o=6 h*e", arrow="b o", means=product("bk,ok->bo")),
)

# --- reductions, softmax, normalisations ---


def last(name: str) -> Callable[[Array], Array]:
    return lambda x: getattr(np, name)(x, -1)


def exponential(x: Array, dim: int) -> Array:
    return np.exp(x) / np.exp(x).sum(dim, keepdims=True)


def normal(x: Array, dims: tuple[int, ...], eps: float = 1e-5, centred: bool = True) -> Array:
    """x less its mean, over the root of its mean square."""
    x = x - x.mean(dims, keepdims=True) if centred else x
    return x / np.sqrt((x * x).mean(dims, keepdims=True) + eps)


REDUCED = (
    *[oracle(n, "b=4 s=2 h=6", over="h", means=last(n)) for n in ("sum", "mean", "amax", "amin", "argmax", "cumsum")],
    *[oracle(n, "h=5", over="h", means=last(n)) for n in ("sum", "mean", "amax", "amin", "argmax", "cumsum")],
    *[oracle(n, "b=4 s=2 h=6", means=getattr(np, n)) for n in ("sum", "mean", "amax", "amin")],
    *[oracle(n, "b=4 s=2 h=6", over="b h", means=lambda x, n=n: getattr(np, n)(x, (0, 2)))
      for n in ("sum", "mean", "amax", "amin")],
    oracle("argmax", "b=4 h=2*e=3", over="b", means=lambda x: x.argmax(0)),
    oracle("argmax", "b=4 h=6", over="h", means=lambda x: x.argmax(1), make={0: small}),
    oracle("argmax", "bool b=4 h=6", over="h", means=lambda x: x.argmax(1), make={0: truth}),
    oracle("cumsum", "b=4 s=3 h=2", over="s", means=lambda x: np.stack([x[:, : i + 1].sum(1) for i in range(3)], 1)),
    oracle("sum", "bool b=4 s=3", over="s", means=lambda x: x.sum(1), make={0: truth}),
    *[oracle("softmax", s, over=o, means=lambda x, d=d: exponential(x, d))
      for s, o, d in (("b=4 s=2 h=6", "h", 2), ("b=4 s=2 h=6", "b", 0), ("h=5", "h", 0))],
    *[oracle("log_softmax", s, over=o, means=lambda x, d=d: np.log(exponential(x, d)))
      for s, o, d in (("b=4 s=2 h=6", "h", 2), ("b=4 s=2 h=6", "b", 0), ("h=5", "h", 0))],
)  # fmt: skip


def batch_normal(
    x: Array, mean: Array, variance: Array, weight: Array | None = None, bias: Array | None = None
) -> Array:
    """Over all dims but the second, by the batch's own statistics."""
    shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
    found = normal(x, tuple(d for d in range(x.ndim) if d != 1))
    found = found if weight is None else found * weight.reshape(shape)
    return found if bias is None else found + bias.reshape(shape)


STATES = {"make": {1: positive, 2: positive}, "constant": (1, 2)}
NORMALISED = (
    oracle("layer_norm", "b=4 d=6", "d", "d", over="d", means=lambda x, w, b: normal(x, (1,)) * w + b),
    oracle("layer_norm", "b=4 s=2 d=6", over="d", means=lambda x: normal(x, (2,))),
    oracle("layer_norm", "b=4 s=2 d=6", "s d", over="s d", eps=0.1, means=lambda x, w: normal(x, (1, 2), 0.1) * w),
    oracle("layer_norm", "d=6 b=4", None, "d", over="d", means=lambda x, b: normal(x, (0,)) + b[:, None]),
    oracle("rms_norm", "b=4 d=6", "d", over="d", means=lambda x, w: normal(x, (1,), centred=False) * w),
    oracle("rms_norm", "b=4 s=2 d=6", over="d", means=lambda x: normal(x, (2,), centred=False)),
    oracle("rms_norm", "d=6 b=4 s=3", "d s", over="d s", eps=0.01,
           means=lambda x, w: normal(x, (0, 2), 0.01, False) * w[:, None]),
    oracle("batch_norm", "b=8 c=6", "c", "c", "c", "c", means=batch_normal, **STATES),
    oracle("batch_norm", "b=4 c=3 h=2 w=5", "c", "c", "c", "c", means=batch_normal, **STATES),
    oracle("batch_norm", "b=8 c=2 s=3", "c", "c", means=batch_normal, **STATES),
)  # fmt: skip

# --- losses ---


def entropy(x: Array, label: Array, dim: int, ignore: int | None = None, smoothing: float = 0.0) -> Array:
    """The mean over labels that are not ignored of -sum of target * log of the shares."""
    classes = x.shape[dim]
    logs = np.log(exponential(x, dim))
    target = (np.arange(classes) == label[..., None]) * (1.0 - smoothing) + smoothing / classes
    items = -(np.moveaxis(logs, dim, -1) * target).sum(-1)
    kept = np.ones(label.shape, bool) if ignore is None else label != ignore
    return np.asarray(items[kept].mean())


def likelihood(x: Array, label: Array, dim: int, ignore: int | None = None) -> Array:
    items = -np.take_along_axis(np.moveaxis(x, dim, -1), label[..., None], -1)[..., 0]
    return np.asarray((items if ignore is None else items[label != ignore]).mean())


def logits(x: Array, y: Array) -> Array:
    share = 1.0 / (1.0 + np.exp(-x))
    return np.asarray(-(y * np.log(share) + (1.0 - y) * np.log(1.0 - share)).mean())


LABELLED = (("b=8 c=6", "i64 b", 1), ("b=4 t=2 c=6", "i64 b t", 2), ("b=4 c=6 t=2", "i64 b t", 1), ("c=6", "i64", 0))
CHUNKED: tuple[tuple[str, str, str, int, tuple[str, ...], dict[str, Any]], ...] = (
    ("i64 b=8", "b d=4", "c=6 d", 0, (), {}),
    ("i64 b=4 t=2", "b t d=5", "d c=6", 1, (), {}),
    ("i64 b=2 t=3", "b t h=2*e=2", "c=6 h*e", 0, ("c",), {"ignore_index": 1, "label_smoothing": 0.1}),
)
LOSSES = (
    *[oracle("cross_entropy", s, y, means=lambda x, y, d=d: entropy(x, y, d), make={1: below(6)})
      for s, y, d in LABELLED],
    *[oracle("nll_loss", s, y, means=lambda x, y, d=d: likelihood(x, y, d), make={1: below(6)})
      for s, y, d in LABELLED],
    oracle("cross_entropy", "b=4 t=2 c=6", "i64 b t", ignore_index=0, label_smoothing=0.1, make={1: below(3)},
           means=lambda x, y: entropy(x, y, 2, 0, 0.1)),
    oracle("nll_loss", "b=4 t=2 c=6", "i64 b t", ignore_index=1, make={1: below(3)},
           means=lambda x, y: likelihood(x, y, 2, 1)),
    *[oracle("chunked_cross_entropy", y, x, w, *more, dim=dim, chunks=3, make={0: below(6)}, **named,
             means=lambda y, x, w, *b, dim=dim, n=named: entropy(x @ (w if dim else w.T) + sum(b), y, x.ndim - 1,
                                                                 *n.values()))
      for y, x, w, dim, more, named in CHUNKED],
    *[oracle("kept_count", s, ignore_index=1, means=lambda y: (y != 1).sum(), make={0: below(3)})
      for s in ("i64 b=9", "i64 b=4 t=3", "i64 b=2 s=2 t=3")],
    *[oracle("mse_loss", *p, means=lambda x, y: np.asarray(((x - y) ** 2).mean()))
      for p in (("b=4 h=6", "b h"), ("b=7", "b"), ("b=2 1 h=2*e=3", "b 1 h*e"))],
    *[oracle("bce_with_logits", *p, means=logits, make={1: lambda s: torch.rand(s, dtype=torch.float64)})
      for p in (("b=4 h=6", "b h"), ("b=7", "b"), ("b=2 1 h=2*e=3", "b 1 h*e"))],
)  # fmt: skip

# --- lookups, shapes ---


def pairs_in_order(scores: np.ndarray, label: np.ndarray) -> float:
    """By counting all pairs of a 1 and a 0."""
    ones, zeros = scores[label == 1], scores[label == 0]
    pairs = [(a, b) for a in ones for b in zeros]
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)


def both_kinds(shape: tuple[int, ...]) -> torch.Tensor:
    """Labels 0 and 1, some of each."""
    return (torch.arange(math.prod(shape)) % 3 == 1).long().view(shape)


LOOKUPS = (
    *[oracle("auc", s, label, means=pairs_in_order, make={0: scores, 1: both_kinds})
      for s, label in (("b=9", "i64 b"), ("b=4 h=6", "i64 b h"), ("b=7 1", "b 1")) for scores in (small, torch.randn)],
    *[oracle("embedding", s, t, means=lambda i, t: t[i], make={0: below(8)})
      for s, t in (("i64 b=4 s=2", "v=8 d=6"), ("i64 b=9", "v=8 1"), ("i64 b=2 s=3 t=2", "v=8 h=2*e=2"))],
    oracle("gather", "b=4 v=8", "i64 b", over="v", make={1: below(8)}, means=lambda x, i: x[np.arange(4), i]),
    oracle("gather", "b=4 v=8", "i64 b k=2", over="v", make={1: below(8)},
           means=lambda x, i: np.take_along_axis(x, i, 1)),
    oracle("gather", "v=8 b=4", "i64 k=3 b", over="v", make={1: below(8)},
           means=lambda x, i: np.take_along_axis(x, i, 0)),
    oracle("gather", "b=4 h=2*e=4", "i64 b k=2", over="h*e", make={1: below(8)},
           means=lambda x, i: np.take_along_axis(x, i, 1)),
    *[oracle("one_hot", s, classes="v=8", means=lambda i: np.eye(8, dtype=np.int64)[i], make={0: below(8)})
      for s in ("i64 b=4 s=2", "i64 b=9", "i64")],
    *[oracle("arange", dim=f"v={n}", means=lambda n=n: np.arange(n)) for n in (1, 5, 8)],
)  # fmt: skip
MOVED = (
    oracle("rearrange", "b=4 s=2 h=4*e=3", arrow="b h s e",
           means=lambda x: x.reshape(4, 2, 4, 3).transpose(0, 2, 1, 3)),
    oracle("rearrange", "b=4 h=6", arrow="h 1 b", means=lambda x: x.T[:, None]),
    oracle("rearrange", "b=4 s=1 h=6", arrow="h b", means=lambda x: x[:, 0].T),
    oracle("rearrange", "b=4*h=6 c=2", arrow="h*c b",
           means=lambda x: x.reshape(4, 6, 2).transpose(1, 2, 0).reshape(12, 4)),
    oracle("relabel", "b=4 h=6", arrow="b k=6", means=lambda x: x),
    oracle("relabel", "b=4 h=2*e=3", arrow="b k=6", means=lambda x: x),
    oracle("relabel", "b=4 s=3 h=6", arrow="c=4 t=3 k=6", means=lambda x: x),
    oracle("flatten", "b=4 c=6 h=2", keep="b", means=lambda x: x.reshape(4, 12)),
    oracle("flatten", "b=4 c=6", means=lambda x: x.reshape(24)),
    oracle("flatten", "a=2 b=4 c=6 h=2", keep="a b", means=lambda x: x.reshape(2, 4, 12)),
    oracle("concat", "b=4 c=6", "b d=2", over="c", means=lambda *xs: np.concatenate(xs, 1)),
    oracle("concat", "c=6", "d=2", "e=3", over="c", means=lambda *xs: np.concatenate(xs, 0)),
    oracle("concat", "b=4 c=6 h=2", "b d=1 h", over="c", means=lambda *xs: np.concatenate(xs, 1)),
    oracle("slice", "b=4 c=6", slices={"c": (1, 5)}, means=lambda x: x[:, 1:5]),
    oracle("slice", "b=4 c=6", slices={"c": (5, 6), "b": (0, 3)}, means=lambda x: x[:3, 5:]),
    oracle("slice", "b=4 s=2 c=6", slices={"s": (1, 2)}, means=lambda x: x[:, 1:]),
)  # fmt: skip

# --- attention ---


def attended(
    q: Array, k: Array, v: Array, keep: Array | None = None, causal: bool = False, scale: float | None = None
) -> Array:
    """Query by query; head h of n reads head h * m // n of m. A query that sees no key gives 0."""
    result = np.zeros((*q.shape[:-1], v.shape[-1]))
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    for at in np.ndindex(q.shape[:-1]):
        head = (at[-2] * k.shape[-3] // q.shape[-3],) if q.ndim > 2 else ()
        there = (*at[:-2], *head)
        seen = np.ones(k.shape[-2], bool) if keep is None else keep[at[:-2]].copy()
        seen &= np.arange(k.shape[-2]) <= at[-1] if causal else True
        if seen.any():
            weights = np.exp(k[there][seen] @ q[at] * scale)
            result[at] = weights @ v[there][seen] / weights.sum()
    return result


def turned(over: int, along: int, base: float = 10000.0) -> Callable[[Array], Array]:
    """Each pair as a complex number, times e^(i place base^(-2 i / n))."""

    def turn(x: Array) -> Array:
        x = np.moveaxis(x, (along, over), (-2, -1))
        half = x.shape[-1] // 2
        rates = base ** (-2.0 * np.arange(half) / x.shape[-1])
        pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * np.arange(x.shape[-2])[:, None] * rates)
        return np.moveaxis(np.concatenate((pairs.real, pairs.imag), -1), (-2, -1), (along, over))

    return turn


ATTENTION = (
    oracle("attention", "b=4 h=4 s=6 e=4", "b h t=3 e", "b h t e", means=attended),
    oracle("attention", "b=2 h=8 s=5 e=2", "b k=2 s e", "b k s f=3", causal=True,
           means=lambda q, k, v: attended(q, k, v, causal=True)),
    oracle("attention", "s=6 e=4", "t=3 e", "t e", scale=0.3, means=lambda q, k, v: attended(q, k, v, scale=0.3)),
    oracle("rotary", "b=2 h=4 s=6 e=8", over="e", along="s", means=turned(3, 2)),
    oracle("rotary", "s=6 b=2 e=4", over="e", along="s", base=500.0, means=turned(2, 0, 500.0)),
    oracle("rotary", "b=2 e=4 s=6", over="e", along="s", means=turned(1, 2)),
)  # fmt: skip

# --- random ---


def thinned(p: float, rank: int) -> Callable[[Array], Array]:
    """What falls out: elements, or all that follows the first `rank` dims."""

    def thin(x: Array) -> Array:
        shape = x.shape[:rank] if rank else x.shape
        kept = np.array([not falls_out(at, shape, p) for at in np.ndindex(shape)], dtype=float).reshape(shape)
        return x * kept.reshape(*shape, *[1] * (x.ndim - len(shape))) / (1.0 - p)

    return thin


RANDOM = (
    *[oracle("dropout", s, p=p, means=thinned(p, 0))
      for s, p in (("b=4 c=6", 0.5), ("b=30", 0.1), ("b=2 s=3 c=5", 0.9))],
    *[oracle("dropout2d", s, p=p, means=thinned(p, 2))
      for s, p in (("b=4 c=6 h=2 w=3", 0.5), ("b=9 c=1 #2 #2", 0.2), ("b=1 c=20 #1 #3", 0.75))],
)  # fmt: skip

ORACLES = (
    *ELEMENTWISE, *PRODUCTS, *REDUCED, *NORMALISED, *LOSSES, *LOOKUPS, *MOVED, *IMAGES, *ATTENTION, *RANDOM, *MORE,
)  # fmt: skip
