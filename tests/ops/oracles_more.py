"""Operators whose meaning is in numpy alone: each line is an oracle, and an example that every split is tried on."""

from __future__ import annotations

import numpy as np

from tests.ops.oracle import oracle

MORE = (
    oracle("expand", "d=6", arrow="b=4 1 d", means=lambda x: np.tile(x, (4, 1, 1))),
    oracle("expand", "1 s=2 d=6", arrow="b=4 s d", means=lambda x: np.repeat(x, 4, 0)),
    oracle("expand", "b=4 d=6", arrow="b s=2 d", means=lambda x: np.stack([x, x], 1)),
    oracle("expand", "b=4 1 h=2*e=3", arrow="b h*e", means=lambda x: x[:, 0]),
    oracle("expand", "#3 d=6", arrow="s=3 t=2 d", means=lambda x: np.stack([x, x], 1)),
    oracle("concat", "b=4 1 d=3", "b s=2 d", over="s", means=lambda *xs: np.concatenate(xs, 1)),
)
