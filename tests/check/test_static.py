"""Static expressions, arguments and initial values: what they come to, and what is told of what cannot be."""

from __future__ import annotations

import pytest

from tests.check.checked import checked, net


def size_of(expression: str) -> list[str] | int:
    """The size of a dim that is given as an expression of `batch` = 8 and `d` = 16, or what is reported."""
    text = f"dim batch = 8, d = 16, e = {expression}\n" + net(
        "return x * w + sum(v)", "param w: [d] = ones()\nparam v: [e] = ones()", dims="unused = 1"
    ).replace("dim unused = 1", "")
    found = checked(text)
    return found.value("v").type.shape[0] if found.program is not None else found.messages


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        ("2 * batch + d / 4 - 1", 19),
        ("d / 3 * 3", 16),
        ("2 ** 3", 8),
        ("4 ** 0.5", 2),
        ("0.5 + 1.5", 2),
        ("0.5 * d", 8),
        ("1 / 3 + 2 / 3", 1),
        ("3 - -2", 5),
        ("3 if batch > d else 4", 4),
        ("3 if not (batch > d) and d >= 16 else 4", 3),
        ("3 if batch == 9 or d != 16 else 4", 4),
        ("3 if true == (batch < d) else 4", 3),
        ("sqrt(d) + log(exp(3))", 7),
    ],
)
def test_arithmetic_is_exact(expression: str, size: int) -> None:
    assert size_of(expression) == size


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("d / 3", "SH21"),
        ("d / (batch - 8)", "SH211: `d / (batch - 8)` divides by zero"),
        ("0 ** -1", "SH211: "),
        ("(0 - 2) ** 0.5", "SH211: "),
        ("10.0 ** 400", "SH211: "),
        ("2 ** 63", "SH211: `2 ** 63` is not a number that can be used"),
        ("2 ** 62 + 2 ** 62", "SH211: "),
        ("1e200 * 1e200 / 1e200", "SH211: `1e200 * 1e200` is not a number that can be used"),
        ("1 + 0 * (((((1 / 3) ** 64) ** 64) ** 64) ** 64) ** 64", "SH211: `(((1 / 3) ** 64) ** 64)` is not a number"),
        ("log(batch - 8)", "SH211: `log(batch - 8)` is not a number that can be used"),
        ("sqrt(-d)", "SH211: "),
        ("exp(1000)", "SH211: "),
        ("log(true)", "SH216: "),
        ("1.5", "SH210: the size of dim `e` must be a whole number, and this is 1.5"),
        ("2.0 ** 54", "SH210: the size of dim `e` must be a whole number"),
        ("-true", "SH210: `-` needs a number, and this is "),
        ('"a" < 3', "SH210: `<` needs numbers, and this is "),
        ("3 if 4 else 5", "SH210: "),
        ("0", "SH213: "),
        ("nowhere", "SH200: "),
        ("Net", "SH2"),
        ("(1, 2)", "SH210: "),
    ],
)
def test_what_is_no_size(expression: str, message: str) -> None:
    found = size_of(expression)
    assert isinstance(found, list) and found[0].startswith(message), found


@pytest.mark.parametrize(
    ("start", "init"),
    [
        ("zeros()", ("zeros", ())),
        ("constant(0.5)", ("constant", (0.5,))),
        ("normal(0.02)", ("normal", (0.02,))),
        ("normal(std = 0.02)", ("normal", (0.02,))),
        ("uniform(-1, 1)", ("uniform", (-1.0, 1.0))),
        ("uniform(high = 1, low = 0)", ("uniform", (0.0, 1.0))),
        ("kaiming_uniform(d)", ("kaiming_uniform", (16.0,))),
        ("xavier_uniform(d, d)", ("xavier_uniform", (16.0, 16.0))),
    ],
)
def test_initial_values(start: str, init: tuple[str, tuple[float, ...]]) -> None:
    found = checked(net("return x * w", f"param w: [d] = {start}"))
    value = found.value("w")
    assert value.init is not None and (value.init.kind, value.init.args) == init


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("3", "SH222: a parameter starts from a named distribution"),
        ("normals(0.1)", "SH222: "),
        ("zeros(1)", "SH218: `zeros` takes 0 arguments"),
        ("constant(1, 2)", "SH218: `constant` takes 1 argument"),
        ("constant()", "SH221: `constant` needs "),
        ("normal(deviation = 1)", "SH220: `normal` has no argument `deviation`"),
        ("zeros(of = 1)", "SH220: `zeros` has no argument `of`"),
        ("normal(0 - 1)", "SH2"),
        ("uniform(2, 1)", "SH2"),
        ("kaiming_uniform(0.5)", "SH2"),
        ("normal(0.1, std = 0.2)", "SH219: `normal` gets `std` twice"),
        ("constant(nowhere)", "SH200: "),
    ],
)
def test_initial_values_that_cannot_be(start: str, message: str) -> None:
    found = checked(net("return x * w", f"param w: [d] = {start}")).messages
    assert len(found) == 1 and found[0].startswith(message), found


BODIES = [
    ("h = slice(x, d = 4)\nreturn x * w + h", "SH210: `d` needs a range"),
    ("h = slice(x, d = 0..nowhere)\nreturn x * w + h", "SH200: "),
    ("h = slice(x, e = 0..4)\nreturn x * w + h", "SH250: "),
    ("h = sum(x, over = 3)\nreturn x * w + h", "SH2"),
    ("h = sum(x, over = x)\nreturn x * w + h", "SH2"),
    ("h = dropout(x, p = x)\nreturn h * w", "SH210: `p` must be known before the run"),
    ('h = dropout(x, p = "half")\nreturn h * w', "SH210: "),
    ("h = gelu(x, approximate = 3)\nreturn h * w", "SH210: `approximate` must be a text"),
    ("h = cast(x, f33)\nreturn h * w", "SH2"),
    ("h = arange(w)\nreturn x * w", "SH2"),
    ("h = x[0]\nreturn x * w", "SH214: `x` is "),
    ("h = nowhere[0]\nreturn x * w", "SH200: "),
    ("h = lstm(x)\nreturn x * w", "SH"),
    ("h = relu(y: [batch])\nreturn x * w", "SH214: a field is declared outside of a data source"),
    ("h = relu(Net)\nreturn x * w", "SH2"),
    ("h = relu(nowhere)\nreturn x * w", "SH200: "),
    ("h = relu(x, x)\nreturn x * w", "SH218: "),
    ("h = relu()\nreturn x * w", "SH221: "),
    ("h = relu(x, x = x)\nreturn x * w", "SH219: "),
    ("return 3", "SH210: a body must return a tensor, and this is "),
    ("return x", "SH223: "),
    ("return sum(x * w, over = d)", "SH252: the result is declared with 2 dims, and has 1"),
]


@pytest.mark.parametrize(("body", "message"), BODIES)
def test_statements_that_cannot_be(body: str, message: str) -> None:
    found = checked(net(body)).messages
    assert found and found[0].startswith(message), found


FUNCTION = """
fn scaled(x: [..., d], by: float = 2.0) -> [..., d] {
  return x * by
}
"""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("scaled()", "SH221: "),
        ("scaled(x, 1.0, 2.0)", "SH218: "),
        ("scaled(x, x = x)", "SH219: `scaled` gets `x` twice"),
        ("scaled(x, buy = 3.0)", "SH220: `scaled` has no argument `buy`"),
        ("scaled(x, by = x)", "SH210: `by` must be known before the run, and this is a tensor"),
        ('scaled(x, by = "a lot")', "SH210: "),
        ("scaled(nowhere)", "SH200: "),
        ("scaled(3.0)", "SH2"),
    ],
)
def test_calls_of_functions_that_cannot_be(call: str, message: str) -> None:
    found = checked(net(f"return {call} * w") + FUNCTION).messages
    assert found and found[0].startswith(message), found


def test_functions_take_defaults_and_names() -> None:
    found = checked(net("return scaled(x) * w + scaled(by = 3.0, x = x)") + FUNCTION)
    assert found.program is not None, found.messages
    constants = sorted(v.constant for v in found.graph.values if v.constant is not None)
    assert constants == [2.0, 3.0]


MEMBERS = [
    ("param w: [d] = ones()\nparam w: [d] = zeros()", "SH201: `w` is declared twice"),
    ("param w: [d] = ones()\nlayer w = Linear(d, d)", "SH201: "),
    ("param w: [d] = ones()\nlayer a = 3", "SH214: a layer is made by calling a model"),
    ("param w: [d] = ones()\nlayer a = relu(3)", "SH2"),
    ("param w: [d] = ones()\nlayer a = Linear(d, d, 3, 4, 5)", "SH218: `Linear` takes "),
    ("param w: [d] = ones()\nlayer a = Linear(d, d, in = d)", "SH219: "),
    ("param w: [d] = ones()\nlayer a[0] = Linear(d, d)", "SH213: "),
    ("param w: [d] = ones()\nlayer a[nowhere] = Linear(d, d)", "SH200: "),
    ("param w: [d, d] = ones()", "SH253: "),
    ("param w: [d] = ones()\nlayer a = Nowhere(d)", "SH200: "),
]


@pytest.mark.parametrize(("members", "message"), MEMBERS)
def test_members_that_cannot_be(members: str, message: str) -> None:
    found = [m for m in checked(net("return x * w", members)).messages if not m.startswith("SH223")]
    assert found and found[0].startswith(message), found
