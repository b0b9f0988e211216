"""What each family reports: code, message and what it offers to type. The pages are in tests/diagnostics/."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.calls import call

MISTAKES: list[tuple[Any, str, str, str]] = [
    (
        ("add", "b=4 h=16", "b"),
        "SH280",
        "`+` cannot line up `left` and `right`: `h` (16) meets `b` (4)",
        "`rearrange(right -> [b, 1])` puts its dims",
    ),
    (
        ("where", "b=4", "b", "b"),
        "SH281",
        "`where` needs `condition` to be a bool tensor, and it is f64[b]",
        "`condition != 0`",
    ),
    (
        ("matmul", "b=4 h=16", "o=16 p=2"),
        "SH282",
        "`@` contracts `h` (16) of `left` with `o` (16) of `right`: they are not one dim",
        "`relabel(left -> [b, o])`",
    ),
    (
        ("matmul", "b=4 h=16", "p=2 h"),
        "SH282",
        "`@` contracts `h` (16) of `left` with `p` (2) of `right`: they are not one dim",
        "`einsum(left, right -> [b, p])`",
    ),
    (
        ("matmul", "b=4 h=16", "o=15 p=2"),
        "SH282",
        "`@` contracts `h` (16) of `left` with `o` (15) of `right`: they are not one dim",
        "must be `h`",
    ),
    (("matmul", "b=4 h=16", ""), "SH282", "`@` needs two tensors, and `right` has no dims", "`*` multiplies"),
    (
        ("matmul", "c=3 b=4 h=16", "d=3 h p=2"),
        "SH282",
        "the leading dims of `@` do not line up: `c` (3) meets `d` (3)",
        "`einsum`",
    ),
    (
        ("rearrange", "b=4 s=1 h=2", {"arrow": "h"}),
        "SH284",
        "`rearrange` keeps every dim: `b` (4) is left out",
        "of `slice(x, b = 0..1)` it may be left out",
    ),
    (
        ("rearrange", "b=4*s=3 h=2", {"arrow": "b h"}),
        "SH284",
        "`rearrange` keeps every dim: `s` (3) is left out",
        "a `rearrange` makes `s` a dim of its own first; then `mean(.., over = s)` removes it",
    ),
    (("slice", "b=4 h=6", {"slices": {"h": (0, 6, 0)}}), "SH291", "`slice` takes 0..6 by 0 of `h` (6)", "0..6"),
    (("top_k", "b=4 h=2", {"k": "k=3", "over": "h"}), "SH293", "`top_k` takes 3 of `h` (2)", "at most the size"),
    (
        ("var", "b=4 h=2", {"over": "h", "correction": 2}),
        "SH293",
        "`var` divides by 2 elements less 2",
        "`correction = 0`",
    ),
    (
        ("stack", "b=4 h=2", "b", {"over": "k=2"}),
        "SH292",
        "`stack` needs all dims alike: `x0` is f64[b, h], `x1` is f64[b]",
        "`concat` is along",
    ),
    (
        ("stack", "b=4", "b", {"over": "k=3"}),
        "SH292",
        "`stack` makes a dim of 2, and `k` (3) is none",
        "`over = 2`, or a dim of that size",
    ),
    (
        ("pad", "b=4 h=2", {"pads": {"h": (-1, 0)}}),
        "SH293",
        "`pad` adds -1 before and 0 behind `h` (2)",
        "`slice` takes a part",
    ),
    (("take", "v=4 h=2", "i64 h", {"over": "v"}), "SH253", "dim `h` occurs twice in one type", "`dim other = h`"),
    (("rand", {}), "SH284", "`rand` needs the dims of its result", "`rand(-> [batch, d])`, say"),
    (
        ("rotary", "s=4 e=6", {"over": "e", "along": "s", "part": 3}),
        "SH293",
        "`part` is 3, of `e` (6)",
        "an even number",
    ),
    (
        ("rotary", "s=4 e=6", {"over": "e", "along": "s", "pairs": "odd"}),
        "SH293",
        "`rotary` knows no pairs `odd`",
        '"neighbours"',
    ),
    (
        ("rotary", "s=4 e=6", {"over": "e", "along": "s", "scales": (1.0,)}),
        "SH293",
        "`scales` has 1 numbers, for 3 pairs",
        "a factor of the angle of a pair",
    ),
    (
        ("pick", "b=4 h=2", {"places": {"h": 2}}),
        "SH291",
        "`pick` takes number 2 of `h` (2)",
        "0 to 1, or -2 to -1, from the end",
    ),
    (("pick", "b=4 h=2", {"places": {"h": 0, "b": 0}}), "SH286", "`pick` is over one dim", "`over = b`, say"),
    (
        ("embedding", "i64 b=4", "v=8 d=2", {"padding": 8}),
        "SH293",
        "`padding` is 8, and `table` has `v` (8)",
        "the row that has no gradient",
    ),
    (
        ("logical_and", "bool b=4", "b"),
        "SH281",
        "`and` needs `right` to be a bool tensor, and it is f64[b]",
        "`right != 0`",
    ),
    (
        ("attention", "b=2 s=4 e=2", "b s e", "b s e", {"window": 0}),
        "SH293",
        "`window` is 0",
        "less than 4096 places away",
    ),
    (
        ("attention", "b=2 s=4 e=2", "b s e", "b s e", {"softcap": -1.0}),
        "SH293",
        "`softcap` is -1, and scores stay within it",
        "`softcap = 50.0`",
    ),
    (
        ("attention", "b=2 s=4 e=2", "b s e", "b s e", {"p": 1.0}),
        "SH293",
        "`p` is 1, and it is the share of weights that falls out: from 0 to less than 1",
        "`p = 0.1` drops a tenth",
    ),
    (
        ("attention", "b=2 s=4 e=2", "b t=3 e", "b t e", {"window": 2}),
        "SH293",
        "a `window` compares places of one sequence: `s` (4) meets `t` (3)",
        "without it each query sees all keys",
    ),
    (
        ("attention", "b=2 s=4 e=2", "b s e", "b s e", None, "t=3 s"),
        "SH288",
        "`attention` needs `bias` to be [b, s, s], and it is f64[t, s]",
        "declare it as",
    ),
    (
        ("attention", "b=2 s=4 e=2", "b s e", "b s e", None, None, "s"),
        "SH288",
        "`attention` needs `sinks` to be [b], and it is f64[s]",
        "declare it as `[b]`",
    ),
    (
        ("expand", "b=4 h=2", {"arrow": "h b"}),
        "SH284",
        "`expand` keeps every dim in its order: `b` (4) of `x` is not there",
        "`rearrange` permutes",
    ),
    (("expand", "h=2", {"arrow": "h h"}), "SH253", "dim `h` occurs twice in one type", "`dim other = h`"),
    (("expand", "h=2", {}), "SH284", "`expand` needs the dims of its result", "`expand(x -> [h])`, say"),
    (
        ("einsum", "b=4 h=2*e=3", "h o=5", {"arrow": "b o"}),
        "SH283",
        "`einsum` meets `h` both in `h * e` and in `h`",
        "`rearrange`",
    ),
    (("einsum", "b=4 h=2", {"arrow": "b b"}), "SH283", "the result of `einsum` names `b` twice", "named once"),
    (
        ("rearrange", "b=4 h=6", {"arrow": "b k=6"}),
        "SH284",
        "`rearrange` keeps every dim: `h` (6) of `x` is left out, and `k` (6) is none of its dims",
        "`relabel` renames",
    ),
    (
        ("rearrange", "b=4 h=6", {"arrow": "b h b"}),
        "SH284",
        "`rearrange` keeps every dim: the result names `b` (4) twice",
        "literal 1",
    ),
    (
        ("relabel", "b=4 h=6", {"arrow": "b k=5"}),
        "SH285",
        "`relabel` renames dims in their places: `h` (6) cannot be called `k` (5)",
        "`rearrange`",
    ),
    (
        ("relabel", "b=4 h=6", {"arrow": "b"}),
        "SH285",
        "`relabel` renames dims in their places: `x` has 2 dims and the result names 1",
        "`rearrange`",
    ),
    (("sum", "b=4 h=6", {"over": "b b"}), "SH286", "`sum` is over `b` twice", "its dims are"),
    *(
        ((name, *operands, {"over": "b"}), "SH286", f"`{name}` is over `b`, which `{x}` has twice", "[h, b, other])`")
        for name, x, operands in (
            ("softmax", "x", ["h=6 b=4 b"]),
            ("sum", "x", ["h=6 b=4 b"]),
            ("cumsum", "x", ["h=6 b=4 b"]),
            ("concat", "x0", ["h=6 b=4 b", "h b b"]),
        )
    ),
    *(
        (operands, "SH281", f"`{sign}` needs `{name}` to be a tensor of numbers, and it is bool[b]", "f32)` makes it")
        for operands, sign, name in (
            (("neg", "bool b=4"), "-", "x"),
            (("abs", "bool b=4"), "abs", "x"),
            (("relu", "bool b=4"), "relu", "x"),
            (("square", "bool b=4"), "square", "x"),
            (("sub", "f64 b=4", "bool b"), "-", "right"),
            (("pow", "bool b=4", "bool b"), "**", "left"),
        )
    ),
    (("argmax", "b=4 h=6", {"over": "b h"}), "SH286", "`argmax` is over one dim", "`over = b`"),
    (
        ("concat", "b=4 h=6", "b", {"over": "k=2"}),
        "SH286",
        "`concat` is over `k`, which is no dim of `x0`",
        "its dims are",
    ),
    (
        ("conv2d", "b=4 h=6", "o=2 h #3 #3"),
        "SH287",
        "`conv2d` needs [batch, channels, height, width], and `x` is f64[b, h]",
        "literal 1",
    ),
    (
        ("conv2d", "b=4 h=6 #8 #8", "o=2 h"),
        "SH287",
        "`conv2d` needs a weight of four dims, and `weight` is f64[o, h]",
        "out, in",
    ),
    (
        ("conv1d", "b=4 c=2 #8 #8", "o=2 c #3"),
        "SH287",
        "`conv1d` needs [batch, channels, length], and `x` is f64[b, c, 8, 8]",
        "three dims",
    ),
    (
        ("conv_transpose2d", "b=4 c=2 #8 #8", "c o=2 #3"),
        "SH287",
        "`conv_transpose2d` needs a weight of four dims, and `weight` is f64[c, o, 3]",
        "[in, out, kernel, kernel]",
    ),
    (
        ("conv_transpose1d", "b=4 c=2 #8", "o=2 c #3"),
        "SH288",
        "`conv_transpose1d` needs `weight` to be [c, c, 3], and it is f64[o, c, 3]",
        "declare it as",
    ),
    (
        ("conv_transpose2d", "b=4 c=2 #8 #8", "c o=2 #3 #3", {"output_padding": 1}),
        "SH293",
        "`conv_transpose2d` leaves nothing of a stride of 1, 0 of padding, 1 of output_padding and a dilation of 1",
        "less than the stride",
    ),
    (
        ("adaptive_avg_pool2d", "b=4 c=2 #8 #8", {"output_size": (2, 0)}),
        "SH293",
        "`adaptive_avg_pool2d` cannot give 2 by 0 elements",
        "1 or more",
    ),
    (
        ("interpolate", "b=4 c=2 #8", {"size": 4, "mode": "bilinear"}),
        "SH293",
        "`interpolate` knows no mode `bilinear` for 1 spatial dim",
        "`nearest` and `linear`",
    ),
    (
        ("interpolate", "b=4 c=2 #8", {}),
        "SH293",
        "`interpolate` needs `size` or `scale_factor`, and not both",
        "doubles",
    ),
    (
        ("interpolate", "b=4 c=2 #8", {"size": 4, "align_corners": True}),
        "SH293",
        "`interpolate` has no corners to align by `nearest`",
        "linear modes",
    ),
    (("group_norm", "b=4 c=6", {"num_groups": 4}), "SH293", "`group_norm` cannot make 4 groups of `x`", "divides"),
    (
        ("group_norm", "b=4 c=6", "b", {"num_groups": 2}),
        "SH288",
        "`group_norm` needs `weight` to be [c], and it is f64[b]",
        "declare it as `[c]`",
    ),
    (("embedding", "i64 b=4", "v=4"), "SH287", "`embedding` needs a table of two dims, and `table` is f64[v]", "rows"),
    (
        ("batch_norm", "b=4 d=6", "d", "b"),
        "SH288",
        "`batch_norm` needs `running_var` to be [d], and it is f64[b]",
        "[d]",
    ),
    (
        ("conv2d", "b=4 c=6 #8 #8", "o=2 d=6 #3 #3"),
        "SH288",
        "`conv2d` needs `weight` to be [o, c, 3, 3], and it is f64[o, d, 3, 3]",
        "[o, c, 3, 3]",
    ),
    (
        ("mse_loss", "b=4 1", "b"),
        "SH290",
        "`mse_loss` compares values of the same dims: `input` is f64[b, 1], `target` is f64[b]",
        "`rearrange(target -> [b, 1])`",
    ),
    (("slice", "b=4", {"slices": {"b": (2, 5)}}), "SH291", "`slice` takes 2..5 of `b` (4)", "within 0..4"),
    (
        ("concat", "b=4 h=6", "c=4 h", {"over": "h"}),
        "SH292",
        "`concat` over `h` needs all other dims alike: `x0` is f64[b, h], `x1` is f64[c, h]",
        "may differ",
    ),
    (
        ("dropout", "b=4", {"p": 1.5}),
        "SH293",
        "`p` is 1.5, and it is the share that falls out: from 0 to less than 1",
        "p = 0.1",
    ),
    (
        ("max_pool2d", "b=4 c=6 #8 #8", {"kernel_size": 9}),
        "SH293",
        "`max_pool2d` has no place for a window of 9 over `8` with 0 of padding",
        "fits into",
    ),
    (
        ("flatten", "s=2 b=4 h=6", {"keep": "b"}),
        "SH294",
        "`flatten` keeps leading dims, and `b` does not lead in f64[s, b, h]",
        "`rearrange(x -> [b, s * h])`",
    ),
    (
        ("attention", "b=2 h=6 s=4 e=8", "b h s d=8", "b h s d"),
        "SH288",
        "`attention` needs `k` to be [b, h, s, e], and it is f64[b, h, s, d]",
        "[b, h, s, e]",
    ),
    (
        ("attention", "b=2 h=6 s=4 e=8", "b h t=5 e", "b h s e"),
        "SH288",
        "`attention` needs `v` to be [b, h, t, e], and it is f64[b, h, s, e]",
        "[b, h, t, e]",
    ),
    (
        ("attention", "b=2 h=6 s=4 e=8", "b h t=5 e", "b h t e", {"causal": True}),
        "SH293",
        "causal attention compares places of one sequence: `s` (4) meets `t` (5)",
        "`causal = false`",
    ),
    (
        ("attention", "b=2 h=6 s=4 e=8", "b h t=5 e", "b h t e", "bool b s"),
        "SH288",
        "`attention` needs `keep` to be [b, t], and it is bool[b, s]",
        "[b, t]",
    ),
    (
        ("rotary", "b=2 s=4 e=7", {"over": "e", "along": "s"}),
        "SH293",
        "`rotary` turns pairs, and `e` (7) is odd",
        "even",
    ),
    (
        ("rotary", "b=2 s=4 e=8", {"over": "e", "along": "e"}),
        "SH293",
        "`rotary` is over and along `e`",
        "along another",
    ),
    (
        ("rotary", "b=2 s=4 e=8", {"over": "e", "along": "s", "base": 0.0}),
        "SH293",
        "`base` is 0, and angles are its powers",
        "10000",
    ),
]


@pytest.mark.parametrize(("arguments", "code", "message", "offer"), MISTAKES, ids=lambda v: str(v)[:60])
def test_mistake(arguments: tuple[Any, ...], code: str, message: str, offer: str) -> None:
    static = arguments[-1] if isinstance(arguments[-1], dict) else {}
    made = call(*(a for a in arguments if not isinstance(a, dict)), **static)
    assert made.inference is None
    assert [(d.code, d.message) for d in made.sink.found] == [(code, message)]
    assert offer in " ".join(made.sink.found[0].help)


def test_a_literal_dim_takes_the_name_it_meets() -> None:
    made = call("matmul", "b=4 #6", "h=6 o=2")
    assert made.inference is not None
    assert made.inference.rule.operands[0][1] == made.inference.rule.operands[1][0]
    assert call("matmul", "b=4 #6", "h=7 o=2").codes == ["SH282"]


def test_a_dim_of_the_same_size_is_not_taken_for_the_classes() -> None:
    made = call("cross_entropy", "b=4 c=4", "i64 b")
    assert made.inference is not None and made.inference.attrs["dim"] == 1
