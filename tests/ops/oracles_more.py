"""Operators whose meaning is in numpy alone: each line is an oracle, and an example that every split is tried on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.ops.oracle import Array, Oracle, below, drawn, falls_out, oracle, positive, random_word, truth

PAIRS = (("b=4 h=6", "b h"), ("b=4 s=2 h=6", "h"), ("b=4 1 n=2*e=3", "s=2 n*e"))
UNARY: dict[str, Callable[[Array], Array]] = {
    "erf": np.vectorize(math.erf, otypes=[float]),
    "softplus": lambda x: np.log(1.0 + np.exp(x)),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1.0),
}
DIVIDED = {"floor_divide": np.floor_divide, "remainder": np.remainder}


def attended(
    names: str, causal: bool = False, window: int = 99, softcap: float = 0.0, p: float = 0.0
) -> Callable[..., Array]:
    """Pair by pair; names: the operands after q, k and v."""

    def formula(q: Array, k: Array, v: Array, *further: Array) -> Array:
        given, result = dict(zip(names.split(), further, strict=True)), np.zeros((*q.shape[:-1], v.shape[-1]))
        pairs = (*q.shape[:-1], k.shape[-2])
        bias = np.broadcast_to(given.get("bias", np.zeros(())), pairs)
        for at in np.ndindex(q.shape[:-1]):
            head = (at[-2] * k.shape[-3] // q.shape[-3],) if q.ndim > 2 else ()
            there, total = (*at[:-2], *head), np.exp(given["sinks"][at[-2]]) if "sinks" in given else 0.0
            for j in range(k.shape[-2]):
                score = k[(*there, j)] @ q[at] / math.sqrt(q.shape[-1])
                score = softcap * np.tanh(score / softcap) if softcap else score
                hidden = (causal and j > at[-1]) or abs(j - at[-1]) >= window
                if hidden or ("keep" in given and not given["keep"][(*at[:-2], j)]):
                    continue
                weight = np.exp(score + bias[(*at, j)])
                total += weight
                if not falls_out((*at, j), pairs, p):
                    result[at] += weight * v[(*there, j)] / (1.0 - p)
            result[at] /= total or 1.0
        return result

    return formula


def some(shape: tuple[int, ...]) -> torch.Tensor:
    """Numbers of which several are equal."""
    return torch.randint(0, 4, shape).double()


def bell(index: int) -> float:
    """Box and Muller's transform of two words."""
    radius, angle = ((random_word(index, lane) >> 11) * 2.0**-53 for lane in (0, 1))
    return float(np.float32(math.sqrt(-2.0 * math.log(1.0 - radius)) * math.cos(2.0 * math.pi * angle)))


def spun(over: int, along: int, pairs: str, part: int | None, scales: tuple[float, ...] | None) -> Callable[..., Array]:
    """Each pair by a turn of its own."""

    def turn(x: Array) -> Array:
        x = np.moveaxis(x, (along, over), (-2, -1)).copy()
        width = part or x.shape[-1]
        for i in range(width // 2):
            a, b = (2 * i, 2 * i + 1) if pairs == "neighbours" else (i, i + width // 2)
            angle = np.arange(x.shape[-2]) * 10000.0 ** (-2.0 * i / width) * (scales[i] if scales else 1.0)
            x[..., a], x[..., b] = (x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle),
                                    x[..., b] * np.cos(angle) + x[..., a] * np.sin(angle))  # fmt: skip
        return np.moveaxis(x, (-2, -1), (along, over))

    return turn


def trained(padding: int) -> dict[str, Any]:
    """A lookup of whose table one row is not trained."""
    made = {"means": lambda i, t: t[i], "smooth": lambda i, t: t[i] * (i != padding)[..., None]}
    return {"padding": padding, "make": {0: below(8)}, **made}


def attention(names: str, q: str, k: str, *further: str | None, **static: Any) -> Oracle:
    return oracle("attention", q, k, k, *further, means=attended(names, **static), make={3: truth} if "keep" in names
                  else {}, **static)  # fmt: skip


MORE = (
    oracle("expand", "d=6", arrow="b=4 1 d", means=lambda x: np.tile(x, (4, 1, 1))),
    oracle("expand", "1 s=2 d=6", arrow="b=4 s d", means=lambda x: np.repeat(x, 4, 0)),
    oracle("expand", "b=4 d=6", arrow="b s=2 d", means=lambda x: np.stack([x, x], 1)),
    oracle("expand", "b=4 1 h=2*e=3", arrow="b h*e", means=lambda x: x[:, 0]),
    oracle("expand", "#3 d=6", arrow="s=3 t=2 d", means=lambda x: np.stack([x, x], 1)),
    oracle("concat", "b=4 1 d=3", "b s=2 d", over="s", means=lambda *xs: np.concatenate(xs, 1)),
    attention("", "b=2 h=4 s=7 e=2", "b k=2 s e", causal=True, window=3),
    attention("", "s=6 e=4", "s e", window=2),
    attention("", "b=2 h=2 s=4 e=2", "b h t=5 e", softcap=0.7),
    attention("bias", "b=2 h=4 s=4 e=2", "b h s e", None, "h s t=4", causal=True),
    attention("keep bias", "b=4 h=4 s=3 e=2", "b k=2 t=5 e", "bool b t", "b 1 1 t"),
    attention("bias", "c=2 b=2 h=2 s=3 e=2", "c b h t=2 e", None, "b 1 s t"),
    attention("bias", "h=2 s=3 e=2", "h t=2 e", None, "t"),
    attention("sinks", "b=2 h=4 s=3 e=2", "b k=2 t=4 e", None, None, "h"),
    attention("keep sinks", "b=4 h=2 s=3 e=2", "b h t=2 e", "bool b t", None, "h"),
    attention("", "b=2 h=4 s=3 e=2", "b k=2 t=4 e", p=0.4),
    attention("keep bias sinks", "b=2 h=4 s=6 e=2", "b k=2 s e", "bool b s", "h s t=6", "h", causal=True, window=4,
              softcap=1.5, p=0.3),
    *[oracle(name, "b=4 c=6", places={"c": 2}, means=lambda x: x[:, 2]) for name in ("pick", "scanned")],
    *[oracle(name, "c=6 b=4", places={"c": -1}, means=lambda x: x[-1]) for name in ("pick", "scanned")],
    *[oracle(name, "b=4 h=2*e=3 s=2", places={"h*e": 4}, means=lambda x: x[:, 4]) for name in ("pick", "scanned")],
    oracle("embedding", "i64 b=4 s=2", "v=8 d=6", **trained(0)),
    oracle("embedding", "i64 b=9", "v=8 h=2*e=2", **trained(5)),
    *[oracle(n, s, means=f) for n, f in UNARY.items() for s in ("b=5", "b=4 h=6", "b=2 1 h=2*e=3")],
    *[oracle(n, *p, means=f, make={0: positive, 1: positive}) for n, f in DIVIDED.items() for p in PAIRS],
    *[oracle(n, *[f"i64 {s}" for s in PAIRS[0]], means=f, make={0: below(9), 1: lambda s: below(3)(s) + 1})
      for n, f in DIVIDED.items()],
    *[oracle(n, *[f"bool {s}" for s in p], means=f, make={0: truth, 1: truth})
      for n, f in (("logical_and", np.logical_and), ("logical_or", np.logical_or)) for p in PAIRS],
    *[oracle("logical_not", f"bool {s}", means=np.logical_not, make={0: truth}) for s in ("b=5", "b=4 h=6", "b=2 1")],
    *[oracle("logsumexp", s, over=o, means=lambda x, d=d: np.log(np.exp(x).sum(d)))
      for s, o, d in (("b=4 s=2 h=6", "h", 2), ("b=4 s=2 h=6", "b h", (0, 2)), ("b=5", None, 0))],
    *[oracle("var", s, over=o, means=lambda x, d=d, c=c: x.var(d, ddof=c), correction=c)
      for s, o, d, c in (("b=4 s=2 h=6", "h", 2, 1), ("b=4 s=2 h=6", "b h", (0, 2), 0), ("b=5", None, 0, 1))],
    *[oracle("top_k", s, k="k=2", over="h", means=lambda x, d=d: np.argsort(-x, d, kind="stable").take([0, 1], d),
             make={0: some}) for s, d in (("b=4 h=6", 1), ("h=5 b=4", 0), ("b=2 h=4 s=3", 1))],
    *[oracle("flip", s, over=o, means=lambda x, d=d: np.flip(x, d).copy())
      for s, o, d in (("b=4 h=6", "h", 1), ("b=4 s=2 h=3", "s h", (1, 2)), ("b=5", "b", 0))],
    *[oracle("roll", s, over=o, shift=n, means=lambda x, d=d, n=n: np.roll(x, n, d))
      for s, o, n, d in (("b=4 h=6", "h", 2, 1), ("b=4 s=3", "b", -1, 0), ("b=5", "b", 7, 0))],
    *[oracle("stack", *xs, over=f"k={len(xs)}", means=lambda *xs: np.stack(xs))
      for xs in (("b=4 h=6", "b h"), ("b=4", "b", "b"), ("b=4 h=2*e=3", "b h*e"))],
    oracle("pad", "b=4 c=3", pads={"c": (1, 2)}, means=lambda x: np.pad(x, ((0, 0), (1, 2)))),
    oracle("pad", "b=4 c=3 s=2", pads={"b": (0, 1), "s": (2, 0)}, means=lambda x: np.pad(x, ((0, 1), (0, 0), (2, 0)))),
    oracle("pad", "b=4 c=3", pads={"c": (1, 1)}, value=0.5,
           means=lambda x: np.pad(x, ((0, 0), (1, 1)), constant_values=0.5)),
    *[oracle("take", s, i, over="v", make={1: below(8)}, means=lambda x, i, d=d: np.take(x, i, d))
      for s, i, d in (("v=8 h=3", "i64 q=4 k=2", 0), ("b=4 v=8 h=3", "i64 k=5", 1), ("b=4 v=8", "i64", 1),
                      ("v=8 h=3", "i64 v", 0))],
    oracle("take", "b=3 h=2*e=4", "i64 k=5", over="h*e", make={1: below(8)}, means=lambda x, i: np.take(x, i, 1)),
    oracle("top_k", "b=3 h=2*e=4", k="k=2", over="h*e", make={0: some},
           means=lambda x: np.argsort(-x, 1, kind="stable").take([0, 1], 1)),
    *[oracle("rotary", s, over="e", along="s", means=spun(o, a, p, n, c), pairs=p, part=n, scales=c)
      for s, o, a, p, n, c in (("b=2 h=2 s=6 e=8", 3, 2, "neighbours", None, None),
                               ("s=6 b=2 e=8", 2, 0, "neighbours", 4, (1.0, 0.5)),
                               ("b=2 e=6 s=4", 1, 2, "halves", 4, None),
                               ("b=2 s=4 e=4", 2, 1, "halves", None, (0.25, 2.0)))],
    *[oracle("rand", arrow=a, means=lambda n=n: np.array([drawn(i) for i in range(math.prod(n))]).reshape(n))
      for a, n in (("b=4 h=6", (4, 6)), ("b=5", (5,)), ("b=2 s=3 h=2*e=2", (2, 3, 4)))],
    *[oracle("randn", arrow=a, means=lambda n=n: np.array([bell(i) for i in range(math.prod(n))]).reshape(n))
      for a, n in (("b=4 h=6", (4, 6)), ("b=5", (5,)), ("b=2 s=3 h=2*e=2", (2, 3, 4)))],
    oracle("slice", "b=4 c=7", slices={"c": (1, 6, 2), "b": (0, 4, 3)}, means=lambda x: x[0:4:3, 1:6:2]),
)  # fmt: skip
