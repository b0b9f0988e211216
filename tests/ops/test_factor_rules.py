"""Each legal split of each operator against the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shardlang.interpret.trials.splits import Case, check, labelled, splits
from tests.ops.calls import call
from tests.ops.oracle import Example, below, positive, ties, truth
from tests.ops.oracles_images import IMAGES
from tests.ops.oracles_more import MORE


def ex(
    name: str, *operands: str | None, make: Any = None, constant: tuple[int, ...] = (), **static: Any
) -> Example:  # fmt: skip
    return Example(name, operands, static, make or {}, constant)


XY = ("b=4 h=6", "b h")
# Calls beside those of the oracles of oracles_more.py and oracles_images.py.
SHAPES = [
    *[
        ex(n, "b=4 h=6")
        for n in ("relu", "gelu", "silu", "tanh", "sigmoid", "exp", "square", "abs", "sin", "cos", "neg")
    ],
    *[ex(n, "b=4 h=6", make={0: positive}) for n in ("log", "sqrt", "rsqrt")],
    ex("gelu", "b=4 h=6", approximate="tanh"),
    *[ex(n, *XY) for n in ("add", "sub", "mul", "maximum", "minimum", "lt", "ge", "gt", "le")],
    ex("eq", "i64 b=4 h=6", "i64 b h"),
    ex("ne", "i64 b=4 h=6", "i64 b h"),
    ex("div", *XY, make={1: positive}),
    ex("pow", *XY, make={0: positive}),
    ex("add", "b=4 s=2 h=6", "h"),
    ex("add", "h=6", "b=4 s=2 h"),
    ex("mul", "b=4 1 h=6", "s=2 h"),
    ex("mul", "b=4 1 n=2*e=3", "s=2 n*e"),
    ex("where", "bool b=4 h=6", "b h", "h", make={0: truth}),
    ex("matmul", "b=4 k=8", "k n=6"),
    ex("matmul", "c=2 b=4 k=8", "k n=6"),
    ex("matmul", "c=2 b=4 k=8", "c k n=6"),
    ex("matmul", "b=4 h=4*e=2", "h*e n=6"),
    ex("matmul", "k=8", "k n=6"),
    ex("matmul", "b=4 k=8", "k"),
    ex("einsum", "b=2 s=4 i=8", "o=6 i", arrow="b s o"),
    ex("einsum", "b=4 i=8", "i o=6", arrow="b o"),
    ex("einsum", "b=2 h=4 s=3 e=2", "b h t=5 e", arrow="b h s t"),
    ex("einsum", "b=2 h=4 s=3 t=5", "b h t e=2", arrow="b h s e"),
    ex("einsum", "b=2 s=4 i=8", "s i", arrow="i b"),
    ex("einsum", "b=4 i=6", "i j=2", "j b", arrow="b"),
    ex("einsum", "b=4 1 i=6", "i", arrow="b"),
    ex("einsum", "b=4 h=4*e=2", "o=6 h*e", arrow="b o"),
    ex("einsum", "b=4 1 i=8", "o=6 i", arrow="b 1 o"),
    ex("einsum", "b=4 1 i=8", "o=6 i", arrow="o 1 b"),
    ex("einsum", "b=4 1 i=8", "b i o=6", arrow="b 1 o"),
    *[
        ex(n, "b=4 s=2 h=6", over="h")
        for n in ("sum", "mean", "amax", "amin", "argmax", "softmax", "log_softmax", "cumsum")
    ],
    *[ex(n, "b=4 s=2 h=6") for n in ("sum", "mean", "amax")],
    ex("amax", "b=4 s=2 h=6", over="b h", make={0: ties}),
    ex("amin", "b=4 h=6", over="h", make={0: ties}),
    ex("argmax", "b=4 h=6", over="b", make={0: ties}),
    ex("argmax", "b=4 h=2*e=3", over="h*e", make={0: ties}),
    ex("argmax", "b=8 h=2*e=3", over="h*e"),
    ex("argmax", "bool b=4 h=2*e=3", over="h*e", make={0: truth}),
    ex("argmax", "bool b=4 h=6", over="b", make={0: torch.zeros}),
    ex("mean", "bool b=4 s=2", make={0: truth}),
    ex("sum", "bool b=4 s=2", make={0: truth}),
    ex("mean", "b=4 h=2*e=3", over="h*e"),
    ex("cross_entropy", "b=8 c=6", "i64 b", make={1: below(6)}),
    ex("cross_entropy", "b=4 t=2 c=6", "i64 b t", make={1: below(6)}),
    ex("cross_entropy", "b=4 c=6 t=2", "i64 b t", make={1: below(6)}),
    ex("cross_entropy", "c=6 b=4", "i64 b", make={1: below(6)}),
    ex("cross_entropy", "b=8 c=2*e=3", "i64 b", make={1: below(6)}),
    ex("cross_entropy", "c=6", "i64", make={1: below(6)}),
    ex("cross_entropy", "b=4 t=2 c=6", "i64 b t", ignore_index=0, make={1: below(3)}),
    ex("cross_entropy", "b=4 t=2 c=6", "i64 b t", ignore_index=0, label_smoothing=0.1, make={1: below(3)}),
    ex("nll_loss", "b=8 c=6", "i64 b", make={1: below(6)}),
    ex("nll_loss", "b=4 t=2 c=6", "i64 b t", ignore_index=1, make={1: below(3)}),
    ex("mse_loss", *XY),
    ex("bce_with_logits", *XY),
    ex("bce_with_logits", "b=4 1", "i64 b 1", make={1: below(2)}),
    ex("layer_norm", "b=4 s=2 d=8", "d", "d", over="d"),
    ex("layer_norm", "b=4 d=8", over="d", eps=0.1),
    ex("layer_norm", "b=4 d=8 s=2", "d", over="d"),
    ex("layer_norm", "b=4 s=2 d=4", "s d", "s d", over="s d"),
    ex("rms_norm", "b=4 d=8", "d", over="d"),
    ex("rms_norm", "d=8 b=4", over="d"),
    ex("batch_norm", "b=4 c=6 s=2", "c", "c", "c", "c", constant=(1, 2), make={2: positive}),
    ex("batch_norm", "b=4 s=2 c=6", "c", "c", constant=(1, 2)),
    ex("conv2d", "b=4 i=4 #6 #5", "o=6 i #3 #2", "o"),
    ex("conv2d", "b=2 i=4 #6 #5", "o=6 i #3 #3", stride=2, padding=1),
    ex("conv2d", "b=2 i=4 #6 #5", "o=6 #2 #3 #3", "o", groups=2),
    ex("conv2d", "b=4 1 #6 #5", "o=6 1 #3 #2", "o"),
    ex("max_pool2d", "b=4 c=6 #6 #4", kernel_size=2),
    ex("avg_pool2d", "b=4 c=6 #6 #4", kernel_size=(3, 2), stride=1),
    ex("embedding", "i64 b=4 s=2", "v=8 d=6", make={0: below(8)}),
    # ids over the dim of the rows, or of the width: places, and what is at them
    ex("embedding", "i64 v=8", "v=8 d=6", make={0: below(8)}),
    ex("embedding", "i64 b=4 d=6", "v=8 d=6", make={0: below(8)}),
    ex("embedding", "i64 b=4 s=2", "v=8 1", make={0: below(8)}),
    ex("gather", "b=4 v=8", "i64 b", over="v", make={1: below(8)}),
    ex("gather", "b=4 v=8", "i64 b k=2", over="v", make={1: below(8)}),
    ex("gather", "b=4 h=2*e=4", "i64 b k=2", over="h*e", make={1: below(8)}),
    ex("take", "b=4 h=2*e=4", "i64 k=5", over="h*e", make={1: below(8)}),
    ex("top_k", "b=4 h=2*e=4", k="k=2", over="h*e"),
    ex("one_hot", "i64 b=4 s=2", classes="v=8", make={0: below(8)}),
    ex("one_hot", "i64 v=8", classes="v=8", make={0: below(8)}),
    ex("arange", dim="v=8"),
    ex("rearrange", "b=4 s=2 h=4*e=3", arrow="b h s e"),
    ex("rearrange", "b=4 h=4 s=2 e=3", arrow="b s h*e"),
    ex("rearrange", "b=4 h=6 s=2", arrow="s b h"),
    ex("rearrange", "b=4 h=6", arrow="b 1 h"),
    ex("rearrange", "b=4 h=6", arrow="h 1 b"),
    ex("rearrange", "b=4 h=6", arrow="b*h"),
    ex("rearrange", "b=4 s=1 h=6", arrow="h b"),
    ex("rearrange", "b=4 s=1*h=6", arrow="b*h"),
    ex("rearrange", "b=4*h=6 c=2", arrow="h*c b"),
    ex("relabel", "b=4 h=6", arrow="b k=6"),
    ex("relabel", "b=4 h=2*e=3", arrow="b k=6"),
    ex("flatten", "b=4 c=6 h=2", keep="b"),
    ex("flatten", "b=4 c=6"),
    ex("concat", "b=4 c=6", "b d=2", over="c"),
    ex("slice", "b=4 c=6", slices={"c": (1, 5)}),
    ex("cast", "b=4 c=6", dtype="f32"),
    ex("cast", "f32 b=4 c=6", dtype="f64"),
    ex("detach", "b=4 c=6"),
    ex("attention", "b=4 h=4 s=6 e=4", "b h t=3 e", "b h t e"),
    ex("attention", "b=2 h=4 s=8 e=2", "b h s e", "b h s e", causal=True),
    ex("attention", "b=2 h=4 s=5 e=2", "b h s e", "b h s f=3", causal=True, scale=0.3),
    ex("attention", "b=2 h=8 s=8 e=2", "b k=2 s e", "b k s e", causal=True),
    ex("attention", "b=2 k=4*g=2 s=6 e=2", "b k t=6 e", "b k t e", causal=True),
    ex("attention", "b=2 h=4 s=6 e=2", "b 1 t=3 e", "b 1 t e"),
    ex("attention", "c=2 b=2 h=4 s=6 e=2", "c b h s e", "c b h s e", causal=True),
    ex("attention", "h=4 s=6 e=2", "h s e", "h s e", causal=True),
    ex("attention", "s=6 e=2", "s e", "s e", causal=True),
    ex("attention", "b=4 h=4 s=6 e=4", "b k=2 t=3 e", "b k t e", "bool b t", make={3: truth}),
    ex("attention", "b=4 h=4 s=6 e=4", "b h s e", "b h s e", "bool b s", causal=True, make={3: truth}),
    ex("attention", "s=6 e=4", "t=3 e", "t e", "bool t", make={3: truth}),
    ex("rotary", "b=2 h=4 s=6 e=8", over="e", along="s"),
    ex("rotary", "s=6 b=2 e=4", over="e", along="s", base=500.0),
    ex("rotary", "b=2 e=4 s=6", over="e", along="s"),
    ex("dropout", "b=4 c=6", p=0.5),
    ex("dropout", "b=4 h=2*e=3", p=0.5),
    ex("dropout2d", "b=4 c=6 h=2 w=3", p=0.5),
]
EXAMPLES = [*SHAPES, *[more.example for more in (*MORE, *IMAGES)]]

_DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64, "bool": torch.bool,
}  # fmt: skip


def case_of(example: Example) -> Case:
    made = call(example.name, *example.operands, **example.static)
    assert made.inference is not None, made.sink.found
    inputs = []
    for at, type in enumerate(t for t in made.types if t is not None):
        filled = example.make.get(at)
        if filled is None:
            filled = below(4) if type.dtype == "i64" else lambda shape: torch.randn(shape, dtype=torch.float64)
        x = filled(type.shape).to(_DTYPES[type.dtype])
        inputs.append(x.requires_grad_(x.is_floating_point() and at not in example.constant))
    return Case(made, tuple(inputs))


def check_type(case: Case, result: Tensor) -> None:
    """What the emitted text makes has the shape and the element type that inference says."""
    assert case.call.inference is not None
    (type,) = case.call.inference.results
    assert (tuple(result.shape), result.dtype) == (type.shape, _DTYPES[type.dtype])


def named(example: Example) -> str:
    return f"{example.name}({', '.join(str(o) for o in example.operands)})"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_every_split_equals_the_whole(example: Example) -> None:
    torch.manual_seed(2)
    case = case_of(example)
    for split in splits(case):
        with labelled(split):
            check(split)


def test_a_sum_is_not_narrowed_before_it_is_taken() -> None:
    """The parts of a sum, each rounded, are not the rounded sum; a wider type holds them as they are."""
    through = {
        (a, b): call("cast", f"{a} b=4", dtype=b).inference.rule.through  # type: ignore[union-attr]
        for a in ("f64", "f32", "bf16")
        for b in ("f64", "f32", "bf16", "f16", "i64")
    }
    wider = {("f64", "f64"), ("f32", "f64"), ("f32", "f32"), *(("bf16", b) for b in ("f64", "f32", "bf16", "f16"))}
    assert {pair for pair, sets in through.items() if sets} == wider
