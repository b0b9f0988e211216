"""Each operator against an independent formula in float64, then each legal split of it against the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shardlang.interpret.trials.splits import Case, check, labelled, splits, whole
from tests.ops.calls import call
from tests.ops.oracle import Example, below, positive, ties, truth
from tests.ops.oracles_images import IMAGES
from tests.ops.oracles_more import MORE


def ex(
    name: str,
    *operands: str | None,
    oracle: Callable[..., Tensor] | None,
    make: Any = None,
    constant: tuple[int, ...] = (),
    **static: Any,
) -> Example:
    return Example(name, operands, oracle, static, make or {}, constant)


def ce(dim: int, **options: Any) -> Callable[..., Tensor]:
    return lambda x, y: F.cross_entropy(x.movedim(dim, 1) if x.dim() > 1 else x, y, **options)


def norm(x: Tensor, dims: tuple[int, ...], eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(dims, keepdim=True)
    return centred / (centred.square().mean(dims, keepdim=True) + eps).sqrt()


def attended(causal: bool = False, scale: float | None = None) -> Callable[..., Tensor]:
    """Attention from its formula, query by query; heads of q share those of k in groups."""

    def formula(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
        if q.dim() > 2:
            k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
        shown = torch.ones(k.shape[-2]).bool() if keep is None else keep if q.dim() == 2 else keep[..., None, :]
        rows = []
        for place in range(q.shape[-2]):
            seen = shown & (torch.arange(k.shape[-2]) <= place) if causal else shown
            scores = (k * q[..., place : place + 1, :]).sum(-1) * (scale or q.shape[-1] ** -0.5)
            weights = scores.exp() * seen
            total = weights.sum(-1, keepdim=True)
            rows.append(((weights / total.where(total > 0, 1.0))[..., None] * v).sum(-2))
        return torch.stack(rows, -2)

    return formula


def turned(along: int, over: int, base: float = 10000.0) -> Callable[[Tensor], Tensor]:
    """Rotary positions by the matrix of all turns."""

    def formula(x: Tensor) -> Tensor:
        size, width = x.shape[along], x.shape[over]
        turns = torch.zeros(size, width, width, dtype=torch.float64)
        for place in range(size):
            for i in range(width // 2):
                angle = torch.tensor(place * base ** (-2 * i / width), dtype=torch.float64)
                j = i + width // 2
                turns[place, i, i] = turns[place, j, j] = angle.cos()
                turns[place, i, j], turns[place, j, i] = -angle.sin(), angle.sin()
        lined = x.movedim((along, over), (-2, -1))
        return torch.einsum("...se,sfe->...sf", lined, turns).movedim((-2, -1), (along, over))

    return formula


XY = ("b=4 h=6", "b h")
EXAMPLES = [
    *[
        ex(n, "b=4 h=6", oracle=f)
        for n, f in {
            "relu": lambda x: x.clamp(min=0),
            "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
            "silu": lambda x: x / (1 + (-x).exp()),
            "tanh": torch.tanh,
            "sigmoid": lambda x: 1 / (1 + (-x).exp()),
            "exp": torch.exp,
            "square": lambda x: x * x,
            "abs": lambda x: x.abs(),
            "sin": torch.sin,
            "cos": torch.cos,
            "neg": lambda x: 0 - x,
        }.items()
    ],
    *[
        ex(n, "b=4 h=6", oracle=f, make={0: positive})
        for n, f in {"log": torch.log, "sqrt": lambda x: x**0.5, "rsqrt": lambda x: x**-0.5}.items()
    ],
    ex("gelu", "b=4 h=6", oracle=lambda x: F.gelu(x, approximate="tanh"), approximate="tanh"),
    *[
        ex(n, *XY, oracle=f)
        for n, f in {
            "add": lambda x, y: x + y,
            "sub": lambda x, y: x - y,
            "mul": lambda x, y: x * y,
            "maximum": torch.maximum,
            "minimum": torch.minimum,
            "lt": lambda x, y: x < y,
            "ge": lambda x, y: x >= y,
            "gt": lambda x, y: x > y,
            "le": lambda x, y: x <= y,
        }.items()
    ],
    ex("eq", "i64 b=4 h=6", "i64 b h", oracle=lambda x, y: x == y),
    ex("ne", "i64 b=4 h=6", "i64 b h", oracle=lambda x, y: x != y),
    ex("div", *XY, oracle=lambda x, y: x / y, make={1: positive}),
    ex("pow", *XY, oracle=lambda x, y: x**y, make={0: positive}),
    ex("add", "b=4 s=2 h=6", "h", oracle=lambda x, y: x + y),
    ex("add", "h=6", "b=4 s=2 h", oracle=lambda x, y: x + y),
    ex("mul", "b=4 1 h=6", "s=2 h", oracle=lambda x, y: x * y),
    ex("mul", "b=4 1 n=2*e=3", "s=2 n*e", oracle=lambda x, y: x * y),
    ex("where", "bool b=4 h=6", "b h", "h", oracle=lambda c, x, y: torch.where(c, x, y.expand(4, 6)), make={0: truth}),
    ex("matmul", "b=4 k=8", "k n=6", oracle=lambda x, y: torch.einsum("bk,kn->bn", x, y)),
    ex("matmul", "c=2 b=4 k=8", "k n=6", oracle=lambda x, y: torch.einsum("cbk,kn->cbn", x, y)),
    ex("matmul", "c=2 b=4 k=8", "c k n=6", oracle=lambda x, y: torch.einsum("cbk,ckn->cbn", x, y)),
    ex("matmul", "b=4 h=4*e=2", "h*e n=6", oracle=lambda x, y: torch.einsum("bk,kn->bn", x, y)),
    ex("matmul", "k=8", "k n=6", oracle=lambda x, y: (x[:, None] * y).sum(0)),
    ex("matmul", "b=4 k=8", "k", oracle=lambda x, y: (x * y).sum(1)),
    ex("einsum", "b=2 s=4 i=8", "o=6 i", arrow="b s o", oracle=lambda x, w: torch.einsum("bsi,oi->bso", x, w)),
    ex("einsum", "b=4 i=8", "i o=6", arrow="b o", oracle=lambda x, w: x @ w),
    ex("einsum", "b=2 h=4 s=3 e=2", "b h t=5 e", arrow="b h s t", oracle=lambda x, w: x @ w.transpose(-2, -1)),
    ex("einsum", "b=2 h=4 s=3 t=5", "b h t e=2", arrow="b h s e", oracle=lambda x, w: x @ w),
    ex("einsum", "b=2 s=4 i=8", "s i", arrow="i b", oracle=lambda x, w: (x * w).sum(1).T),
    ex("einsum", "b=4 i=6", "i j=2", "j b", arrow="b", oracle=lambda x, y, z: torch.einsum("bi,ij,jb->b", x, y, z)),
    ex("einsum", "b=4 1 i=6", "i", arrow="b", oracle=lambda x, w: (x * w).sum((1, 2))),
    ex("einsum", "b=4 h=4*e=2", "o=6 h*e", arrow="b o", oracle=lambda x, w: x @ w.T),
    ex("einsum", "b=4 1 i=8", "o=6 i", arrow="b 1 o", oracle=lambda x, w: x @ w.T),
    ex("einsum", "b=4 1 i=8", "o=6 i", arrow="o 1 b", oracle=lambda x, w: (x @ w.T).permute(2, 1, 0)),
    ex("einsum", "b=4 1 i=8", "b i o=6", arrow="b 1 o", oracle=lambda x, w: x @ w),
    *[
        ex(n, "b=4 s=2 h=6", oracle=f, over="h")
        for n, f in {
            "sum": lambda x: x.sum(2),
            "mean": lambda x: x.sum(2) / 6,
            "amax": lambda x: x.sort(2).values[..., -1],
            "amin": lambda x: x.sort(2).values[..., 0],
            "argmax": lambda x: x.sort(2).indices[..., -1],
            "softmax": lambda x: x.exp() / x.exp().sum(2, keepdim=True),
            "log_softmax": lambda x: x - x.exp().sum(2, keepdim=True).log(),
            "cumsum": lambda x: torch.cumsum(x, 2),
        }.items()
    ],
    *[
        ex(n, "b=4 s=2 h=6", oracle=f)
        for n, f in {
            "sum": lambda x: x.sum(),
            "mean": lambda x: x.sum() / 48,
            "amax": lambda x: x.flatten().sort().values[-1],
        }.items()
    ],
    ex("amax", "b=4 s=2 h=6", oracle=lambda x: x.amax((0, 2)), over="b h", make={0: ties}),
    ex("amin", "b=4 h=6", oracle=lambda x: x.amin(1), over="h", make={0: ties}),
    ex("argmax", "b=4 h=6", oracle=lambda x: x.argmax(0), over="b", make={0: ties}),
    ex("argmax", "b=4 h=2*e=3", oracle=lambda x: x.argmax(1), over="h*e", make={0: ties}),
    ex("argmax", "b=8 h=2*e=3", oracle=lambda x: x.argmax(1), over="h*e"),
    ex("argmax", "bool b=4 h=2*e=3", oracle=lambda x: x.long().argmax(1), over="h*e", make={0: truth}),
    ex("argmax", "bool b=4 h=6", oracle=lambda x: x.long().argmax(0), over="b", make={0: torch.zeros}),
    ex("mean", "bool b=4 s=2", oracle=lambda x: x.sum() / 8, make={0: truth}),
    ex("sum", "bool b=4 s=2", oracle=lambda x: x.long().sum(), make={0: truth}),
    ex("mean", "b=4 h=2*e=3", oracle=lambda x: x.sum(1) / 6, over="h*e"),
    ex("cross_entropy", "b=8 c=6", "i64 b", oracle=ce(1), make={1: below(6)}),
    ex("cross_entropy", "b=4 t=2 c=6", "i64 b t", oracle=ce(2), make={1: below(6)}),
    ex("cross_entropy", "b=4 c=6 t=2", "i64 b t", oracle=ce(1), make={1: below(6)}),
    ex("cross_entropy", "c=6 b=4", "i64 b", oracle=ce(0), make={1: below(6)}),
    ex("cross_entropy", "b=8 c=2*e=3", "i64 b", oracle=ce(1), make={1: below(6)}),
    ex("cross_entropy", "c=6", "i64", oracle=ce(0), make={1: below(6)}),
    ex("cross_entropy", "b=4 t=2 c=6", "i64 b t", oracle=ce(2, ignore_index=0), ignore_index=0, make={1: below(3)}),
    ex(
        "cross_entropy",
        "b=4 t=2 c=6",
        "i64 b t",
        oracle=ce(2, ignore_index=0, label_smoothing=0.1),
        ignore_index=0,
        label_smoothing=0.1,
        make={1: below(3)},
    ),
    ex("nll_loss", "b=8 c=6", "i64 b", oracle=lambda x, y: -x[torch.arange(8), y].sum() / 8, make={1: below(6)}),
    ex(
        "nll_loss",
        "b=4 t=2 c=6",
        "i64 b t",
        oracle=lambda x, y: F.nll_loss(x.movedim(2, 1), y, ignore_index=1),
        ignore_index=1,
        make={1: below(3)},
    ),
    ex("mse_loss", *XY, oracle=lambda x, y: (x - y).square().sum() / 24),
    ex("bce_with_logits", *XY, oracle=lambda x, y: -(y * F.logsigmoid(x) + (1 - y) * F.logsigmoid(-x)).sum() / 24),
    ex(
        "bce_with_logits",
        "b=4 1",
        "i64 b 1",
        make={1: below(2)},
        oracle=lambda x, y: -(y * F.logsigmoid(x) + (1 - y) * F.logsigmoid(-x)).sum() / 4,
    ),
    ex("layer_norm", "b=4 s=2 d=8", "d", "d", over="d", oracle=lambda x, w, b: norm(x, (2,)) * w + b),
    ex("layer_norm", "b=4 d=8", over="d", eps=0.1, oracle=lambda x: norm(x, (1,), 0.1)),
    ex("layer_norm", "b=4 d=8 s=2", "d", over="d", oracle=lambda x, w: norm(x, (1,)) * w[:, None]),
    ex("layer_norm", "b=4 s=2 d=4", "s d", "s d", over="s d", oracle=lambda x, w, b: norm(x, (1, 2)) * w + b),
    ex("rms_norm", "b=4 d=8", "d", over="d", oracle=lambda x, w: x / (x.square().mean(1, True) + 1e-5).sqrt() * w),
    ex("rms_norm", "d=8 b=4", over="d", oracle=lambda x: x / (x.square().mean(0, True) + 1e-5).sqrt()),
    ex(
        "batch_norm",
        "b=4 c=6 s=2",
        "c",
        "c",
        "c",
        "c",
        constant=(1, 2),
        make={2: positive},
        oracle=lambda x, m, v, w, b: norm(x, (0, 2)) * w[:, None] + b[:, None],
    ),
    ex("batch_norm", "b=4 s=2 c=6", "c", "c", constant=(1, 2), oracle=lambda x, m, v: norm(x, (0, 1))),
    ex("conv2d", "b=4 i=4 #6 #5", "o=6 i #3 #2", "o", oracle=lambda x, w, b: F.conv2d(x, w, b)),
    ex(
        "conv2d",
        "b=2 i=4 #6 #5",
        "o=6 i #3 #3",
        oracle=lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        stride=2,
        padding=1,
    ),
    ex("conv2d", "b=2 i=4 #6 #5", "o=6 #2 #3 #3", "o", oracle=lambda x, w, b: F.conv2d(x, w, b, groups=2), groups=2),
    ex("conv2d", "b=4 1 #6 #5", "o=6 1 #3 #2", "o", oracle=lambda x, w, b: F.conv2d(x, w, b)),
    ex("max_pool2d", "b=4 c=6 #6 #4", oracle=lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5)), kernel_size=2),
    ex(
        "avg_pool2d",
        "b=4 c=6 #6 #4",
        oracle=lambda x: x.unfold(2, 3, 1).unfold(3, 2, 1).mean((4, 5)),
        kernel_size=(3, 2),
        stride=1,
    ),
    ex("embedding", "i64 b=4 s=2", "v=8 d=6", oracle=lambda i, t: F.one_hot(i, 8).double() @ t, make={0: below(8)}),
    # ids over the dim of the rows, or of the width: places, and what is at them
    ex("embedding", "i64 v=8", "v=8 d=6", oracle=lambda i, t: F.one_hot(i, 8).double() @ t, make={0: below(8)}),
    ex("embedding", "i64 b=4 d=6", "v=8 d=6", oracle=lambda i, t: F.one_hot(i, 8).double() @ t, make={0: below(8)}),
    ex("embedding", "i64 b=4 s=2", "v=8 1", oracle=lambda i, t: F.one_hot(i, 8).double() @ t, make={0: below(8)}),
    ex("gather", "b=4 v=8", "i64 b", over="v", oracle=lambda x, i: x[torch.arange(4), i], make={1: below(8)}),
    ex("gather", "b=4 v=8", "i64 b k=2", over="v", oracle=lambda x, i: torch.gather(x, 1, i), make={1: below(8)}),
    ex("gather", "b=4 h=2*e=4", "i64 b k=2", over="h*e", oracle=lambda x, i: torch.gather(x, 1, i), make={1: below(8)}),
    ex("take", "b=4 h=2*e=4", "i64 k=5", over="h*e", oracle=lambda x, i: x[:, i], make={1: below(8)}),
    ex("top_k", "b=4 h=2*e=4", k="k=2", over="h*e", oracle=lambda x: x.topk(2, 1).indices),
    ex(
        "one_hot",
        "i64 b=4 s=2",
        classes="v=8",
        oracle=lambda i: (i[..., None] == torch.arange(8)).long(),
        make={0: below(8)},
    ),
    ex("one_hot", "i64 v=8", classes="v=8", oracle=lambda i: torch.eye(8).long()[i], make={0: below(8)}),
    ex("arange", dim="v=8", oracle=lambda: torch.tensor(list(range(8)))),
    ex("rearrange", "b=4 s=2 h=4*e=3", arrow="b h s e", oracle=lambda x: x.view(4, 2, 4, 3).permute(0, 2, 1, 3)),
    ex("rearrange", "b=4 h=4 s=2 e=3", arrow="b s h*e", oracle=lambda x: x.transpose(1, 2).reshape(4, 2, 12)),
    ex("rearrange", "b=4 h=6 s=2", arrow="s b h", oracle=lambda x: x.permute(2, 0, 1)),
    ex("rearrange", "b=4 h=6", arrow="b 1 h", oracle=lambda x: x[:, None]),
    ex("rearrange", "b=4 h=6", arrow="h 1 b", oracle=lambda x: x.T[:, None]),
    ex("rearrange", "b=4 h=6", arrow="b*h", oracle=lambda x: x.reshape(24)),
    ex("rearrange", "b=4 s=1 h=6", arrow="h b", oracle=lambda x: x[:, 0].T),
    ex("rearrange", "b=4 s=1*h=6", arrow="b*h", oracle=lambda x: x.reshape(24)),
    ex("rearrange", "b=4*h=6 c=2", arrow="h*c b", oracle=lambda x: x.view(4, 6, 2).permute(1, 2, 0).reshape(12, 4)),
    ex("relabel", "b=4 h=6", arrow="b k=6", oracle=lambda x: x),
    ex("relabel", "b=4 h=2*e=3", arrow="b k=6", oracle=lambda x: x),
    ex("flatten", "b=4 c=6 h=2", keep="b", oracle=lambda x: x.reshape(4, 12)),
    ex("flatten", "b=4 c=6", oracle=lambda x: x.reshape(24)),
    ex("concat", "b=4 c=6", "b d=2", over="c", oracle=lambda x, y: torch.cat([x, y], 1)),
    ex("slice", "b=4 c=6", slices={"c": (1, 5)}, oracle=lambda x: x[:, 1:5]),
    ex("cast", "b=4 c=6", dtype="f32", oracle=lambda x: x.float()),
    ex("cast", "f32 b=4 c=6", dtype="f64", oracle=lambda x: x.double()),
    ex("detach", "b=4 c=6", oracle=lambda x: x),
    ex("attention", "b=4 h=4 s=6 e=4", "b h t=3 e", "b h t e", oracle=attended()),
    ex("attention", "b=2 h=4 s=8 e=2", "b h s e", "b h s e", causal=True, oracle=attended(causal=True)),
    ex("attention", "b=2 h=4 s=5 e=2", "b h s e", "b h s f=3", causal=True, scale=0.3, oracle=attended(True, 0.3)),
    ex("attention", "b=2 h=8 s=8 e=2", "b k=2 s e", "b k s e", causal=True, oracle=attended(causal=True)),
    ex("attention", "b=2 k=4*g=2 s=6 e=2", "b k t=6 e", "b k t e", causal=True, oracle=attended(causal=True)),
    ex("attention", "b=2 h=4 s=6 e=2", "b 1 t=3 e", "b 1 t e", oracle=attended()),
    ex("attention", "c=2 b=2 h=4 s=6 e=2", "c b h s e", "c b h s e", causal=True, oracle=attended(causal=True)),
    ex("attention", "h=4 s=6 e=2", "h s e", "h s e", causal=True, oracle=attended(causal=True)),
    ex("attention", "s=6 e=2", "s e", "s e", causal=True, oracle=attended(causal=True)),
    ex("attention", "b=4 h=4 s=6 e=4", "b k=2 t=3 e", "b k t e", "bool b t", oracle=attended(), make={3: truth}),
    ex(
        "attention",
        "b=4 h=4 s=6 e=4",
        "b h s e",
        "b h s e",
        "bool b s",
        causal=True,
        oracle=attended(True),
        make={3: truth},
    ),
    ex("attention", "s=6 e=4", "t=3 e", "t e", "bool t", oracle=attended(), make={3: truth}),
    ex("rotary", "b=2 h=4 s=6 e=8", over="e", along="s", oracle=turned(2, 3)),
    ex("rotary", "s=6 b=2 e=4", over="e", along="s", base=500.0, oracle=turned(0, 2, 500.0)),
    ex("rotary", "b=2 e=4 s=6", over="e", along="s", oracle=turned(2, 1)),
    ex("dropout", "b=4 c=6", p=0.5, oracle=None),
    ex("dropout", "b=4 h=2*e=3", p=0.5, oracle=None),
    ex("dropout2d", "b=4 c=6 h=2 w=3", p=0.5, oracle=None),
    *[more.example for more in (*MORE, *IMAGES)],
]

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


def named(example: Example) -> str:
    return f"{example.name}({', '.join(str(o) for o in example.operands)})"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_whole_equals_its_formula(example: Example) -> None:
    case = case_of(example)
    result, gradients, seed = whole(case)
    assert case.call.inference is not None
    (type,) = case.call.inference.results
    assert (tuple(result.shape), result.dtype) == (type.shape, _DTYPES[type.dtype])
    if example.oracle is None:
        return
    inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in case.inputs]
    wanted = example.oracle(*inputs)
    torch.testing.assert_close(result, wanted.detach(), check_dtype=example.name != "mean")
    if wanted.requires_grad and example.name != "detach":
        leaves = [x for x in inputs if x.requires_grad]
        found = torch.autograd.grad(wanted, leaves, seed.to(wanted.dtype), allow_unused=True)
        for mine, other in zip([g for g in gradients if g is not None], found, strict=True):
            torch.testing.assert_close(mine, other)


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
