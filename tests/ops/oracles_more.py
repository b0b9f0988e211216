"""Operators whose meaning is in numpy alone: each line is an oracle, and an example that every split is tried on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ops.oracle import Array, Oracle, below, drawn, oracle, positive, truth

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
                if drawn(int(np.ravel_multi_index((*at, j), pairs))) >= p:
                    result[at] += weight * v[(*there, j)] / (1.0 - p)
            result[at] /= total or 1.0
        return result

    return formula


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
    oracle("pick", "b=4 c=6", places={"c": 2}, means=lambda x: x[:, 2]),
    oracle("pick", "c=6 b=4", places={"c": -1}, means=lambda x: x[-1]),
    oracle("pick", "b=4 h=2*e=3 s=2", places={"h*e": 4}, means=lambda x: x[:, 4]),
    oracle("embedding", "i64 b=4 s=2", "v=8 d=6", **trained(0)),
    oracle("embedding", "i64 b=9", "v=8 h=2*e=2", **trained(5)),
    *[oracle(n, s, means=f) for n, f in UNARY.items() for s in ("b=5", "b=4 h=6", "b=2 1 h=2*e=3")],
    *[oracle(n, *p, means=f, make={0: positive, 1: positive}) for n, f in DIVIDED.items() for p in PAIRS],
    *[oracle(n, *[f"i64 {s}" for s in PAIRS[0]], means=f, make={0: below(9), 1: lambda s: below(3)(s) + 1})
      for n, f in DIVIDED.items()],
    *[oracle(n, *[f"bool {s}" for s in p], means=f, make={0: truth, 1: truth})
      for n, f in (("logical_and", np.logical_and), ("logical_or", np.logical_or)) for p in PAIRS],
    *[oracle("logical_not", f"bool {s}", means=np.logical_not, make={0: truth}) for s in ("b=5", "b=4 h=6", "b=2 1")],
)  # fmt: skip
