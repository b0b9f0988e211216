"""What graph a program is: operators, paths, calls, gradients, what only metrics need."""

from __future__ import annotations

from shardlang.graph.graph import Kind
from tests.check.checked import checked, net
from tests.check.graph_text import graph_text

DIGITS = """
use std.nn: Linear

dim batch = 64, hidden = 128, classes = 10

model Digits {
  layer up = Linear(64, hidden)
  layer down = Linear(hidden, classes, bias = false)

  forward(image: [batch, 64]) -> [batch, classes] {
    h = up(image) |> relu
    return down(h)
  }
}

train {
  model = Digits()
  data = digits(split = "train", batch = batch)
  eval = digits(split = "test", batch = batch)
  scores = model(image)
  loss = cross_entropy(scores, label) + 0.5 * mean(square(model.h))
  metric accuracy = mean(argmax(scores, over = classes) == label)
  optimizer = sgd(lr = 0.1, momentum = 0.9)
  epochs = 10
}
"""

GRAPH = """\
param up.weight: f32[hidden, 64] * = kaiming_uniform(64)
param up.bias: f32[hidden] * = uniform(-0.125, 0.125)
param down.weight: f32[classes, hidden] * = kaiming_uniform(128)
data train.image: f32[batch, 64]
data train.label: i64[batch] < 10
up.return:1: f32[batch, hidden] * = einsum(train.image, up.weight)
up.return: f32[batch, hidden] * = add(up.return:1, up.bias)
h: f32[batch, hidden] * = relu(up.return)
down.return: f32[batch, classes] * = einsum(h, down.weight)
"""


def test_digits_is_this_graph() -> None:
    text = graph_text(checked(DIGITS).graph)
    assert text.startswith(GRAPH)
    assert text.endswith("loss train.loss\nmetric accuracy = train.metric:accuracy\n")


def test_gradients_reach_what_the_loss_needs_and_no_further() -> None:
    found = checked(DIGITS)
    flags = {v.path: v.gradient for v in found.graph.values}
    assert flags["h"] and flags["up.bias"] and flags["train.loss"]
    assert not flags["train.image"] and not flags["train.label"] and not flags["train.metric:accuracy"]


def test_what_only_metrics_need_is_marked() -> None:
    graph = checked(DIGITS).graph
    metric = [op.operator for op in graph.ops if op.section == "metric"]
    assert metric == ["argmax", "eq", "mean"]


def test_a_statement_of_several_operators_has_one_address() -> None:
    found = checked(net("h = relu(x * w) + 1.0\nreturn tanh(h)"))
    assert found.op("h").operator == "add"
    assert found.value("h").statement == 3
    inner = [v.path for v in found.graph.values if v.path.startswith("h:")]
    assert inner == ["h:1", "h:2"]
    assert found.value("return").statement == 1


def test_a_layer_called_twice_has_one_parameter_and_two_values() -> None:
    found = checked(net("h = one(x)\nreturn one(h)", "layer one = Linear(d, d)"))
    assert len(found.graph.params) == 2
    first, second = found.graph.addresses["one.return"]
    assert found.graph.values[first].path == "one.return"
    assert found.graph.values[second].path == "one.return#1"
    calls = [op.call for op in found.graph.ops if op.path.startswith("one.")]
    assert calls == [0, 0, 1, 1]


def test_a_result_is_also_under_the_name_it_is_assigned_to() -> None:
    found = checked(net("h = one(x)\nreturn h", "layer one = Linear(d, d)"))
    assert found.graph.addresses["h"] == found.graph.addresses["one.return"]


def test_arrays_apply_in_turn_and_by_index() -> None:
    found = checked(net("h = x |> all\nreturn all[1](h)", "layer all[3] = Linear(d, d, bias = false)"))
    order = [op.path for op in found.graph.ops if op.path.startswith("all")]
    assert order == ["all[0].return", "all[1].return", "all[2].return", "all[1].return"]
    assert {"all", "all[0]", "all[2]", "all[2].weight"} <= set(found.graph.declared)


def test_a_parameter_used_as_a_value_is_tied() -> None:
    found = checked(net("return einsum(h(x), h.weight -> [batch, d])", "layer h = Linear(d, 5, bias = false)"))
    weight = found.value("h.weight").id
    assert [weight in op.operands for op in found.graph.ops if op.operator == "einsum"] == [True, True]


def test_functions_belong_to_the_statement_that_calls_them() -> None:
    text = (
        net("h = twice(x) * w\nreturn h") + "\nfn twice(a: [..., n]) -> [..., n] {\n  b = a + a\n  return relu(b)\n}\n"
    )
    found = checked(text)
    assert [op.path for op in found.graph.ops][:3] == ["h:1", "h:2", "h"]
    assert found.value("h").statement == 3


def test_numbers_are_constants_of_the_type_beside_them() -> None:
    found = checked(net("h = x * w * 2 + 2\nreturn h / d ** 0.5"))
    constants = [v for v in found.graph.values if v.kind is Kind.CONSTANT]
    assert [(v.constant, v.type.dtype, v.type.dims) for v in constants] == [(2, "f32", ()), (4.0, "f32", ())]


def test_members_that_a_condition_removed_are_declared_and_not_computed() -> None:
    members = "param w: [d] = ones()\nif false {\n layer gone = Linear(d, d)\n param also: [d] = ones()\n}"
    graph = checked(net("return x * w", members)).graph
    assert {"gone", "gone.weight", "gone.bias", "also"} <= set(graph.declared)
    assert [graph.values[p].path for p in graph.params] == ["w"]


def test_the_layers_of_std_nn_have_the_shapes_of_torch() -> None:
    text = """
    use std.nn: BatchNorm2d, Conv2d, Dropout, Dropout2d, Embedding, LayerNorm, Linear, MLP, RMSNorm

    dim batch = 2, d = 6

    model Net {
      layer conv = Conv2d(3, 4, kernel = 3, stride = 2, padding = 1)
      layer norm = BatchNorm2d(4)
      layer drop2 = Dropout2d(0.1)
      layer embed = Embedding(10, d)
      layer ln = LayerNorm(d)
      layer rms = RMSNorm(d)
      layer mlp = MLP(d, 24)
      layer drop = Dropout()
      layer head = Linear(64, d)

      forward(x: [batch, 3, 8, 8], ids: i64[batch]) -> [batch, d] {
        h = conv(x) |> norm |> relu |> drop2
        y = head(flatten(h, keep = batch))
        return (embed(ids) |> ln |> rms |> mlp |> drop) + y
      }
    }

    train {
      model = Net()
      data = random(x: [batch, 3, 8, 8], ids: i64[batch] < 10, label: [batch, d], batches = 1)
      loss = mse_loss(model(x, ids), label)
      optimizer = adamw(lr = 1e-3)
      steps = 1
    }
    """
    graph = checked(text).graph
    shapes = {graph.values[p].path: graph.values[p].type.shape for p in (*graph.params, *graph.states)}
    assert shapes == {
        "conv.weight": (4, 3, 3, 3), "conv.bias": (4,), "norm.weight": (4,), "norm.bias": (4,),
        "norm.running_mean": (4,), "norm.running_var": (4,), "embed.weight": (10, 6), "ln.weight": (6,),
        "ln.bias": (6,), "rms.weight": (6,), "mlp.up.weight": (24, 6), "mlp.up.bias": (24,),
        "mlp.down.weight": (6, 24), "mlp.down.bias": (6,), "head.weight": (6, 64), "head.bias": (6,),
    }  # fmt: skip


SEVERAL = """
dim batch = 8, d = 16

fn parted(x: [batch, d]) -> [batch, d], [batch, d] {
  h = x * 0.5
  return h - 1, tanh(h)
}

model Net {
  param w: [d] = ones()

  forward(x: [batch, d]) -> [batch, d], [batch, d] {
    FIRST, b = parted(x * w)
    c, _ = parted(b)
    return c, USED
  }
}

train {
  model = Net()
  data = random(x: [batch, d], batches = 1)
  y, z = model(x)
  loss = mean(square(y)) + mean(z)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


def test_several_results_are_values_of_their_own() -> None:
    graph = checked(SEVERAL.replace("FIRST", "a").replace("USED", "a * b")).graph
    assert graph is not None
    paths = {name: graph.values[graph.addresses[name][0]].path for name in ("a", "b", "c", "train.y", "train.z")}
    assert paths == {"a": "a", "b": "b", "c": "c", "train.y": "c", "train.z": "return:1"}
    assert [op.operator for op in graph.ops].count("tanh") == 1  # that of `_` is not computed


def test_what_only_unused_results_need_is_not_computed() -> None:
    graph = checked(SEVERAL.replace("FIRST", "_").replace("USED", "b")).graph
    assert graph is not None and "a" not in graph.addresses
    assert [op.operator for op in graph.ops].count("sub") == 1  # of the second call alone
    assert all(v.kind is not Kind.RESULT or v.id in graph.producers for v in graph.values)
