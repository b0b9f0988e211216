"""Identity of dims: formals, dims made from numbers, products, what operators and what the graph see."""

from __future__ import annotations

import pytest

from shardlang.check.graph.unify import Unifier
from shardlang.types.dim import Dim, term_text
from tests.check.checked import Checked, checked, net


def terms(found: Checked, path: str) -> list[str]:
    return [term_text(t) for t in found.value(path).type.dims]


def test_a_model_tells_its_formals_apart_whatever_they_are() -> None:
    found = checked(net("return one(x)", "layer one = Linear(d, d, bias = false)"))
    weight = found.value("one.weight").type.dims
    assert weight[0] == weight[1] == found.graph.dims["d"]
    assert len(found.op("one.return").rule.factors) == 3


def test_a_formal_given_a_number_is_named_by_its_path() -> None:
    found = checked(net("return one(x) |> two", "layer one = Linear(d, 5)\nlayer two = Linear(5, d)"))
    assert found.graph.dims["one.out"] == found.graph.dims["two.in"]
    (dim,) = found.graph.dims["one.out"]
    assert dim.size == 5 and dim.name in ("one.out", "two.in")


def test_a_formal_given_a_product_is_that_product() -> None:
    members = "dim heads = 4, width = 3\nlayer up = Linear(d, heads * width)\nlayer down = Linear(heads * width, d)"
    found = checked(net("h = up(x)\nreturn down(h)", members))
    assert terms(found, "h") == ["batch", "heads * width"]
    assert [d.name for d in found.graph.dims["up.out"]] == ["heads", "width"]


def test_a_number_becomes_the_first_dim_of_its_size() -> None:
    found = checked(net("return x * w", "param w: [16] = ones()"))
    assert found.value("w").type.dims == (found.graph.dims["d"],)


def test_a_number_that_meets_nothing_stays_a_dim_of_its_own() -> None:
    found = checked(net("return x * sum(w)", "param w: [5] = ones()"))
    (dim,) = found.value("w").type.dims[0]
    assert dim.literal and dim.size == 5


def test_numbers_of_a_layer_are_the_callers_once_they_leave_it() -> None:
    text = (
        net("a = x |> inner\nb = a |> inner\nreturn b", "layer inner = Inner()")
        + """
model Inner {
  layer up = Linear(16, 16)
  forward(x: [batch, 16]) -> [batch, 16] {
    return up(x)
  }
}
"""
    )
    found = checked(text)
    assert found.found == ()
    assert terms(found, "return") == ["batch", "d"] or terms(found, "a") == ["batch", "d"]


def test_flatten_and_linear_meet_in_a_product() -> None:
    text = """
    use std.nn: Conv2d, Linear

    dim batch = 2, classes = 3

    model Net {
      layer conv = Conv2d(1, 4, kernel = 3)
      layer head = Linear(144, classes)

      forward(x: [batch, 1, 8, 8]) -> [batch, classes] {
        h = conv(x)
        return flatten(h, keep = batch) |> head
      }
    }

    train {
      model = Net()
      data = random(x: [batch, 1, 8, 8], label: i64[batch] < classes, batches = 1)
      loss = cross_entropy(model(x), label)
      optimizer = sgd(lr = 0.1)
      epochs = 1
    }
    """
    found = checked(text)
    weight = found.value("head.weight").type
    assert weight.shape == (3, 144)
    assert [d.size for d in weight.dims[1]] == [4, 6, 6]


def test_leading_dims_are_bound_once_a_signature() -> None:
    text = (
        net("return both(x, x |> l) * w", "param w: [d] = ones()\nlayer l = Linear(d, d)")
        + """
fn both(a: [..., n], b: [..., n]) -> [..., n] {
  return a + b
}
"""
    )
    assert checked(text).found == ()


def test_a_model_that_nothing_uses_is_checked_with_unknown_sizes() -> None:
    text = """
    model Free(d: dim, heads: dim, n: int) {
      dim width = d / heads
      param w: [heads, width] = normal(0.02)
      param v: [d] = constant(n)

      forward(x: [..., heads, width], y: [..., d]) -> [..., heads, width] {
        return x * w + sum(y * v) + z
      }
    }
    """
    assert checked(text).messages == ["SH200: there is no `z` here"]


def test_unification_is_undone_by_nothing_and_done_once() -> None:
    dims = Unifier()
    a, b = Dim("a", 4), Dim("b", 4)
    literal = dims.fresh("", 4)
    assert dims.same(literal, (a,))
    assert dims.resolve(literal) == (a,)
    assert not dims.same(literal, (b,))
    assert not dims.same((a,), (b,))


def test_products_unify_part_by_part_or_not_at_all() -> None:
    dims = Unifier()
    a, b = Dim("a", 2), Dim("b", 3)
    (two,), (three,), (five,) = dims.fresh("", 2), dims.fresh("", 3), dims.fresh("", 5)
    assert not dims.same((two, five), (a, b))
    assert dims.become == {}
    assert dims.same((two, three), (a, b))
    assert dims.resolve((three, two)) == (b, a)
    assert dims.same(dims.fresh("", 6), (a, b))


def test_a_dim_made_of_slices_is_found_by_their_name() -> None:
    """What `concat` and `slice` make is called as the dim that it is made of, in arguments, however often."""
    found = checked(
        """
        dim batch = 8, seq = 6, d = 4
        model Net {
          param w: [d] = ones()
          forward(x: [batch, seq, d]) -> [batch, d] {
            swapped = concat(slice(x, seq = 2..6), slice(x, seq = 0..2), over = seq)
            return mean(slice(swapped, seq = 1..4), over = seq) * w
          }
        }
        """
    )
    assert found.messages == []


def test_a_layer_takes_a_value_with_a_literal_1() -> None:
    found = checked(
        """
        use std.nn: Linear
        dim batch = 8, d = 4, out = 6
        model Net {
          layer fc = Linear(d, out)
          layer back = Linear(out, d)
          forward(x: [batch, d]) -> [batch, d] {
            h = fc(rearrange(x -> [batch, 1, d])) |> back
            return rearrange(h -> [batch, d])
          }
        }
        """
    )
    assert found.messages == []


@pytest.mark.parametrize(("layer", "names", "ids"), [
    ("LayerNorm(h)", "d", False),
    ("RMSNorm(h)", "d", False),
    ("Linear(h, h2)", "in out", False),
    ("MLP(h, h2)", "d hidden in out", False),
    ("LoRALinear(h, h2, rank = 2)", "in out rank", False),
    ("Embedding(h, h2)", "vocab width", True),
])  # fmt: skip
def test_leading_dims_may_have_the_names_of_a_models_own(layer: str, names: str, ids: bool) -> None:
    for name in names.split():
        field = f"x: i64[batch, {name}] < h" if ids else f"x: [batch, {name}, h]"
        found = checked(f"""
            use std.nn: {layer.partition("(")[0]}

            dim batch = 8, {name} = 4, h = 16, h2 = 32

            model Net {{
              layer one = {layer}

              forward(x: {field.partition(": ")[2].partition(" <")[0]}) {{
                return one(x)
              }}
            }}

            train {{
              model = Net()
              data = random({field}, batches = 2)
              loss = mean(square(model(x)))
              optimizer = sgd(lr = 0.1)
              epochs = 1
            }}
            """)
        assert not [m for m in found.messages if not m.startswith("SH223")]
        assert terms(found, "return")[:2] == ["batch", name]
        assert found.value("return").type.dims[1] == found.graph.dims[name]


def test_a_name_means_the_leading_dim_where_that_is_meant() -> None:
    found = checked("""
        dim batch = 8, d = 4, h = 16

        fn pooled(x: [..., h]) {
          return sum(x, over = d)
        }

        model Pool {
          forward(x: [..., h]) {
            return mean(x, over = d)
          }
        }

        model Net {
          layer pool = Pool()
          param gain: [h] = ones()

          forward(x: [batch, d, h]) {
            return (pool(x) + pooled(x)) * gain
          }
        }

        train {
          model = Net()
          data = random(x: [batch, d, h], batches = 2)
          loss = mean(square(model(x)))
          optimizer = sgd(lr = 0.1)
          epochs = 1
        }
        """)
    assert found.messages == []
    assert terms(found, "pool.return") == terms(found, "return") == ["batch", "h"]
