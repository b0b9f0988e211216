"""What is emitted where nothing is split (the plain torch call) and where something is."""

from __future__ import annotations

import pytest
import torch

from shardlang.interpret.trials.splits import Case, text
from shardlang.ops.code import TORCH, around, atom, call_of, infix, method
from shardlang.ops.site import Offset
from tests.ops.calls import Call, call

WHOLE = [
    (call("matmul", "b=4 i=8", "i o=6"), "x0 @ x1"),
    (call("einsum", "b=4 s=2 i=8", "o=6 i", arrow="b s o"), "F.linear(x0, x1)"),
    (call("einsum", "b=4 i=8", "i o=6", arrow="b o"), "x0 @ x1"),
    (call("einsum", "b=2 h=3 s=4 e=5", "b h t=6 e", arrow="b h s t"), "x0 @ x1.transpose(-2, -1)"),
    (call("einsum", "b=2 s=4 i=8", "s i", arrow="i b"), 'torch.einsum("bsi,si->ib", x0, x1)'),
    (call("add", "b=4 h=6", "h"), "x0 + x1"),
    (call("relu", "b=4"), "torch.relu(x0)"),
    (call("mean", "bool b=4"), "x0.float().mean()"),
    (call("sum", "b=4 h=6 s=2", over="s h"), "x0.sum((1, 2))"),
    (call("argmax", "b=4 h=6", over="h"), "x0.argmax(1)"),
    (call("argmax", "bool b=4 h=6", over="h"), "rt.argmax(x0, 1)"),
    (call("cross_entropy", "b=4 c=6", "i64 b"), "F.cross_entropy(x0, x1)"),
    (
        call("cross_entropy", "b=4 t=2 c=6", "i64 b t", ignore_index=0),
        "F.cross_entropy(x0.flatten(0, 1), x1.flatten(), ignore_index=0)",
    ),
    (call("mse_loss", "b=4 c=6", "b c"), "F.mse_loss(x0, x1)"),
    (call("softmax", "b=4 c=6", over="c"), "F.softmax(x0, 1)"),
    (call("layer_norm", "b=4 d=6", "d", "d", over="d"), "F.layer_norm(x0, (6,), x1, x2, eps=1e-05)"),
    (
        call("batch_norm", "b=4 c=6", "c", "c", "c", "c"),
        "F.batch_norm(x0, x1, x2, x3, x4, training=True, momentum=0.1, eps=1e-05)",
    ),
    (call("rearrange", "b=4 s=2 h=3*e=5", arrow="b h s e"), "x0.reshape(4, 2, 3, 5).transpose(1, 2)"),
    (call("rearrange", "b=4 h=3 s=2 e=5", arrow="b s h*e"), "x0.transpose(1, 2).reshape(4, 2, 15)"),
    (call("rearrange", "b=4 s=1 h=3", arrow="b h"), "x0.reshape(4, 3)"),
    (call("rearrange", "b=4 s=1*h=3", arrow="b h"), "x0"),
    (call("relabel", "b=4 s=2", arrow="b t=2"), "x0"),
    (call("flatten", "b=4 c=2 h=3", keep="b"), "x0.flatten(1)"),
    (call("slice", "b=4 c=6", slices={"c": (0, 4)}), "x0[:, 0:4]"),
    (call("concat", "b=4 c=6", "b d=2", over="c"), "torch.cat([x0, x1], dim=1)"),
    (call("cast", "b=4", dtype="bf16"), "x0.to(torch.bfloat16)"),
    (call("conv2d", "b=4 i=2 #6 #6", "o=3 i #3 #3", "o", padding=1), "F.conv2d(x0, x1, x2, padding=1)"),
    (call("max_pool2d", "b=4 c=2 #6 #6", kernel_size=2), "F.max_pool2d(x0, 2)"),
    (call("conv1d", "b=4 c=2 #6", "c 1 #4", "c", padding=3, groups=2), "F.conv1d(x0, x1, x2, padding=3, groups=2)"),
    (
        call("conv_transpose2d", "b=4 i=2 #6 #6", "i o=3 #2 #2", "o", stride=2),
        "F.conv_transpose2d(x0, x1, x2, stride=2)",
    ),
    (call("adaptive_avg_pool2d", "b=4 c=2 #6 #6", output_size=(2, 3)), "F.adaptive_avg_pool2d(x0, (2, 3))"),
    (
        call("interpolate", "b=4 c=2 #6 #6", scale_factor=2, mode="bilinear"),
        'F.interpolate(x0, scale_factor=2, mode="bilinear")',
    ),
    (call("interpolate", "b=4 c=2 #6 #6", size=(3, 4)), "F.interpolate(x0, size=(3, 4))"),
    (call("group_norm", "b=4 c=6 #6", "c", "c", num_groups=3), "F.group_norm(x0, 3, x1, x2, eps=1e-05)"),
    (call("embedding", "i64 b=4", "v=8 d=6"), "F.embedding(x0, x1)"),
    (
        call("attention", "b=2 h=4 s=6 e=8", "b h s e", "b h s e", causal=True),
        "F.scaled_dot_product_attention(x0, x1, x2, is_causal=True)",
    ),
    (call("attention", "b=2 h=4 s=6 e=8", "b k=2 t=3 e", "b k t e", scale=0.5), "rt.attention(x0, x1, x2, scale=0.5)"),
    (call("rotary", "b=2 h=4 s=6 e=8", over="e", along="s"), "rt.rotary(x0, 3, 2, 10000.0)"),
    (call("dropout", "b=4 c=6", p=0.1), 'rt.dropout(x0, 0.1, rt.random.key("net.x"))'),
    (call("one_hot", "i64 b=4", classes="c=6"), "F.one_hot(x0, 6)"),
    (call("arange", dim="c=6"), "rt.arange(6)"),
]


def case(made: Call, **split: tuple[str, ...]) -> Case:
    assert made.inference is not None, made.sink.found
    names = [f.name for f in made.inference.rule.factors]
    inputs = tuple(torch.zeros(t.shape) for t in made.types if t is not None)
    return Case(made, inputs, {"a": 2, "b": 2}, {names.index(n): axes for n, axes in split.items()})


@pytest.mark.parametrize(("made", "wanted"), WHOLE, ids=lambda v: v.operator if isinstance(v, Call) else "")
def test_whole(made: Call, wanted: str) -> None:
    assert text(case(made)) == wanted


def test_batch_split_is_normalised_by_the_whole() -> None:
    made = call("cross_entropy", "b=8 c=6", "i64 b")
    assert text(case(made, b=("a",))) == 'F.cross_entropy(x0, x1, reduction="sum") / 8'
    masked = call("cross_entropy", "b=8 c=6", "i64 b", ignore_index=0)
    assert text(case(masked, b=("a",))) == (
        'F.cross_entropy(x0, x1, ignore_index=0, reduction="sum") / rt.count(x1 != 0, mesh.a)'
    )
    assert text(case(call("mean", "b=8 s=2"), b=("a",))) == "x0.sum() / 16"


def test_class_split_reduces_inside() -> None:
    made = call("cross_entropy", "b=8 c=6", "i64 b", label_smoothing=0.1)
    assert text(case(made, c=("b",), b=("a",)), rank=1) == (
        'rt.cross_entropy(x0, x1, 1, mesh.b, start=3, classes=6, label_smoothing=0.1, reduction="sum") / 8'
    )


def test_causal_attention_knows_where_its_queries_begin() -> None:
    made = call("attention", "b=2 h=4 s=8 e=2", "b k=2 s e", "b k s e", causal=True)
    assert text(case(made, s=("a",)), rank=2) == "rt.attention(x0, x1, x2, causal=True, start=4)"
    plain = call("attention", "b=2 h=4 s=8 e=2", "b k=2 s e", "b k s e")
    assert text(case(plain, s=("a",)), rank=2) == "rt.attention(x0, x1, x2)"
    heads = case(made, k=("a",))
    assert text(heads) == "rt.attention(x0, x1, x2, causal=True)"
    both = Case(made, heads.inputs, heads.sizes, {**heads.axes, _factor(made, "h"): ("b",)})
    # One head of queries is left to each head of keys.
    assert text(both) == "F.scaled_dot_product_attention(x0, x1, x2, is_causal=True)"


def _factor(made: Call, name: str) -> int:
    assert made.inference is not None
    return [f.name for f in made.inference.rule.factors].index(name)


def test_two_axes_are_one_group() -> None:
    made = call("softmax", "b=8 c=8", over="c")
    assert text(case(made, c=("b", "a"))) == "rt.softmax(x0, 1, mesh['b', 'a'])"


def test_what_is_no_primary_stands_in_brackets() -> None:
    total = infix("+", "a", "b")
    assert [atom("x"), atom(call_of("f", total)), atom(total)] == ["x", "f(a + b)", "(a + b)"]
    assert infix("*", total, around("-", "x"), 2) == "(a + b) * (-x) * 2"
    assert method(total, "sum") == "(a + b).sum()"
    assert method(method("x", "sum", 1), "flatten") == "x.sum(1).flatten()"
    assert [Offset("i", 2).times(3), Offset("i").times(1)] == ["i * 6", "i"]


def test_an_expression_knows_what_it_uses_and_which_call_is_broken() -> None:
    """That with the longest arguments; of equal ones the last."""
    text = infix("/", TORCH("f", method("x", "g", a=TORCH.has("float32"))), TORCH("h", (1, 2), "y"))
    assert text == "torch.f(x.g(a=torch.float32)) / torch.h((1, 2), y)"
    assert text.uses == {"torch"}
    assert (text.head, text.arguments, text.tail) == ("torch.f(", ("x.g(a=torch.float32)",), ") / torch.h((1, 2), y)")
    alike = infix("+", TORCH("f", "x"), TORCH("f", "y"))
    assert (alike.head, alike.arguments, alike.tail) == ("torch.f(x) + torch.f(", ("y",), ")")
    assert (method(text, "sum").arguments, method(TORCH("f", "x"), "sum").head) == ((), "torch.f(")
