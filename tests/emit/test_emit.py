"""Parts of the emitter on plans and layouts made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.emit.emit import emit
from shardlang.emit.text.collectives import moved_axes, permute_sources
from shardlang.emit.text.lines import Stmt, Titled, block_text, call_text
from shardlang.emit.text.names import Naming, attribute, identifier
from shardlang.emit.text.paths import unnumbered
from shardlang.emit.text.sizes import Groups
from shardlang.ops.code import RT, Code, around, call_of, infix, method
from shardlang.ops.python_text import literal
from shardlang.plan.plan import MoveKind
from shardlang.types.layout import Layout
from shardlang.types.mesh import Axis, Mesh
from tests.emit.handmade import quickstart_plan
from tests.emit.sources import main_file


def test_a_pending_product_says_so_and_its_shards_bear_the_name() -> None:
    text = emit(quickstart_plan())["main.py"]
    assert (
        """\
    # quickstart.shard:5  h = x @ w
    h_pending = x @ p.w                          # f32[8, 16]  [batch@a, hidden] +b
    h = rt.reduce_scatter(h_pending, 1, mesh.b)  # f32[8, 4]  [batch@a, hidden@b]
"""
        in text
    )


def test_no_absolute_path_gets_into_the_program() -> None:
    assert emit(quickstart_plan("/home/someone/quickstart.shard")) == emit(quickstart_plan("quickstart.shard"))


def test_a_program_without_train_cannot_be_emitted() -> None:
    plan = quickstart_plan()
    with pytest.raises(InternalError, match="train"):
        emit(replace(plan, program=replace(plan.program, training=None)))


def test_a_form_is_never_named_like_another() -> None:
    plan = quickstart_plan()
    h = plan.graph.values[2]
    values = (*plan.graph.values[:2], replace(h, path="a.h"), replace(h, id=3, path="b.h"), plan.graph.values[4])
    names = Naming(replace(plan, graph=replace(plan.graph, values=values))).names()
    assert len(set(names.values())) == len(names)
    assert names[3, -1] == "b_h"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h", "h"),
        ("h:1", "h_1"),
        ("blocks[3].lambda", "blocks_3_lambda"),
        ("lambda", "lambda_"),
        ("rt", "rt_"),
        ("3d", "_3d"),
    ],
)
def test_identifier(text: str, name: str) -> None:
    assert identifier(text) == name


def test_attribute() -> None:
    assert attribute("p", "blocks[3].fc1.weight") == "p.blocks[3].fc1.weight"
    assert attribute("p", "lambda.weight") == 'p["lambda"].weight'
    assert attribute("p", "a._items[2].__class__") == 'p.a["_items"][2]["__class__"]'


def test_groups_are_written_and_listed() -> None:
    groups = Groups((Mesh((Axis("dp", 2), Axis("in", 2), Axis("mp", 2))),))
    assert [groups.text(axes) for axes in ((), ("dp",), ("in",), ("mp", "dp"))] == [
        "",
        "mesh.dp",
        'mesh["in"]',
        'mesh["mp", "dp"]',
    ]
    assert groups.listed(0) == [("dp",), ("in",), ("mp", "dp")]


def _moved(source: Layout, target: Layout, mesh: Mesh) -> list[int]:
    """The rank that each rank receives from, by the emitted sources."""
    axes = moved_axes(source, target, mesh)
    sources = permute_sources(source, target, axes, mesh)
    found = [-1] * mesh.size
    for members in mesh.groups(axes):
        for index, rank in enumerate(members):
            found[rank] = members[sources[index]]
    return found


def _block(layout: Layout, rank: int, mesh: Mesh) -> tuple[int, ...]:
    def number(axes: tuple[str, ...]) -> int:
        total = 0
        for axis in axes:
            total = total * mesh.axis_size(axis) + mesh.coordinate(rank, axis)
        return total

    return tuple(number(axes) for axes in layout.dims)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Layout((("a", "b"), ())), Layout((("b", "a"), ()))),
        (Layout((("a",), ())), Layout((("c",), ()))),
        (Layout((("a",), ("c",))), Layout((("c",), ("a",)))),
        (Layout((("a", "b"), ()), ("c",)), Layout((("c", "b"), ()), ("a",))),
        (Layout((("b", "a"), ("c",))), Layout((("c", "b"), ("a",)))),
    ],
)
def test_a_permutation_brings_each_rank_its_block(source: Layout, target: Layout) -> None:
    mesh = Mesh((Axis("a", 2), Axis("b", 3), Axis("c", 2)))
    for rank, giver in enumerate(_moved(source, target, mesh)):
        assert _block(source, giver, mesh) == _block(target, rank, mesh)


def test_lines_are_wrapped_and_comments_aligned() -> None:
    long = around("y = ", RT("f", *(f"argument_number_{i}" for i in range(9))))
    text = block_text(Titled("a.shard:1  y", [Stmt("a = 1", "one"), Stmt("bb = 2", "two"), Stmt(long, "f32[]")]))
    assert text.splitlines()[1:3] == ["    a = 1   # one", "    bb = 2  # two"]
    assert text.splitlines()[3] == "    y = rt.f("
    assert text.splitlines()[-1] == "    )  # f32[]"
    assert max(map(len, text.splitlines())) <= 120


def test_a_long_line_does_not_move_the_comments_of_others_away() -> None:
    """Each comment that fits beside its code stands there; longer code has its own column."""
    wide, said = Stmt("x = " + "f" * 50, "short"), "c" * 90
    text = block_text(Titled("", [Stmt("a = 1", said), wide, Stmt("b = 2", "two")])).splitlines()
    assert text == [
        f"    a = 1{' ' * 17}  # {said}", f"    {wide.code}  # short", f"    b = 2{' ' * 17}  # two"
    ]  # fmt: skip


def test_only_the_arguments_of_a_call_are_broken() -> None:
    inner = " + ".join(f"some_long_name_{i}" for i in range(9))
    text = around("y = ", method(Code(inner, primary=False), "sum"))
    assert block_text(Titled("", [Stmt(text)])) == f"    y = ({inner}).sum()"
    text = around("y = ", infix("/", call_of("f", call_of("g", inner, inner), 3), 4))
    lines = block_text(Titled("", [Stmt(text)])).splitlines()
    assert [line.strip() for line in lines] == ["y = f(", "g(", f"{inner},", f"{inner},", "), 3,", ") / 4"]
    text = call_of("all", f"{inner} for x in {inner}")
    assert block_text(Titled("", [Stmt(text)])).splitlines()[1].strip()[-1] != ","


def test_literals() -> None:
    assert literal(("normal", 0.01)) == '("normal", 0.01)'
    assert literal((("b",), ())) == '(("b",), ())'
    assert literal({"path": 'a"b'}) == '{"path": "a\\"b"}'
    assert call_text("f", ["a", "b"]) == "f(a, b)"


def test_what_is_read_is_bound_also_where_a_view_is_read() -> None:
    plan = quickstart_plan()
    mesh2 = Mesh((Axis("c", 8),), "mesh2")
    viewed = Layout((("c",), ()), mesh=1)
    batch_first = replace(
        plan.conversions[0], move=replace(plan.conversions[0].move, dim=0), to=Layout((("a", "b"), ()))
    )
    view = replace(batch_first, id=1, parent=0, move=replace(batch_first.move, kind=MoveKind.VIEW), to=viewed)
    relu = replace(plan.ops[1], operands=(replace(plan.ops[1].operands[0], conversion=1, layout=viewed),), mesh=1)
    names = Naming(
        replace(
            plan, meshes=(*plan.meshes, mesh2), conversions=(batch_first, view), ops=(plan.ops[0], relu, plan.ops[2])
        )
    ).names()
    assert (names[2, -1], names[2, 0], names[2, 1]) == ("h_pending", "h", "h")


def test_a_number_that_is_read_on_two_meshes_stands_where_it_is_read() -> None:
    program = """
dim batch = 12, d = 6, e = d

model Net {
  param w: [d, e] = normal(1.0)
  param u: [e, d] = normal(1.0)

  forward(x: [batch, d]) -> [batch, d] {
    h = x @ w
    a = h * 0.1
    g = a @ u
    b = g * 0.1
    return b
  }
}

strategy s {
  at h: shard ((2, 3), (3, 1))
  at a: shard ((2, 1))
  at g: shard ((3, 2), (2, 1))
  at b: shard ((3, 1))
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 1)
  loss = mse_loss(model(x), label) * 0.1
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""
    text = main_file(program, 6)
    assert "mesh2 = " in text and "constant" not in text
    assert [f" = {operand} * 0.1 " in text for operand in ("h", "g", "loss_1")] == [True, True, True]


def test_a_run_in_float64_takes_means_and_quotients_of_whole_numbers_in_it() -> None:
    program = """
dim batch = 8, d = 6

model Net {
  param w: [d] = normal(1.0)

  forward(x: [batch, d]) -> [batch, d] {
    return x * w * (arange(d) / 4)
  }
}

train {
  model = Net()
  data = random(x: [batch, d], label: i64[batch] < d, batches = 1)
  out = model(x)
  loss = mean(square(out))
  metric right = mean(argmax(out, over = d) == label)
  optimizer = sgd(lr = 0.1)
  precision = PRECISION
  steps = 1
}
"""
    wide = main_file(program.replace("PRECISION", "f64"), 1)
    assert wide.count(".double()") == 1 and ".float()" not in wide
    assert ".float().mean()" in main_file(program.replace("PRECISION", "f32"), 1)


def test_sizes_that_differ_are_defined_where_only_the_loss_uses_them() -> None:
    text = main_file("""
dim batch = 8, d = 6

model Net {
  param w: [d] = normal(1.0)

  forward(x: [batch, d]) -> [batch, d] {
    y = dropout(x * w, p = 0.5)
    return y
  }
}

strategy s {
  mesh tp = 4
  split d over tp uneven
}

train {
  model = Net()
  data = random(x: [batch, d], batches = 1)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  steps = 1
}
""", 4)  # fmt: skip
    assert "    d_start = (0, 2, 4, 6)[mesh.tp.index]\n" in text
    compile(text, "main.py", "exec")


@pytest.mark.parametrize(("statement", "text"), [
    ("maximum(x * w, -1.5)", "torch.clamp(y_1, min=-1.5)"), ("minimum(-2, x * w)", "torch.clamp(y_1, max=-2)"),
    ("x * w * -1.5", "y_1 * (-1.5)"), ("x * w - -1", "y_1 - (-1)"),
])  # fmt: skip
def test_numbers_below_0(statement: str, text: str) -> None:
    program = """
dim batch = 8, d = 6

model Net {
  param w: [d] = normal(1.0)

  forward(x: [batch, d]) -> [batch, d] {
    y = STATEMENT
    return y
  }
}

train {
  model = Net()
  data = random(x: [batch, d], batches = 1)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""
    assert f" = {text}" in main_file(program.replace("STATEMENT", statement), 1)


def test_a_number_stands_only_beside_a_name_without_one() -> None:
    alone = {0: "a.h:1", 1: "a.h:2", 2: "a.h:2:bf16", 3: "x"}
    assert unnumbered(alone) == {0: "a.h:1", 1: "a.h", 2: "a.h:bf16", 3: "x"}
    assert unnumbered({**alone, 4: "a.h"}) == {**alone, 4: "a.h"}
    assert unnumbered({**alone, 4: "a.h:bf16"}) == {**alone, 4: "a.h:bf16"}
    assert unnumbered({0: "up_out:1#1", 1: "up_out#2"}) == {0: "up_out#1", 1: "up_out#2"}
