"""Names in an imported program: arguments and results as in `forward`, values as in the lines of the author, dims by
what they number."""

from __future__ import annotations

import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlang.errors import RunError
from shardlang.importing.authors.arguments import Times, arguments
from shardlang.importing.authors.lines import Lines
from shardlang.importing.imported import Imported, Wanted, import_module
from shardlang.importing.steps.trace import trace
from shardlang.importing.text.broken import MOST, WIDE, broken
from shardlang.importing.text.renamed import parse
from tests.importing.test_import import EXACT


class Mixer(nn.Module):
    """Reads its second argument first, and gives two results of which the second is computed first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, hidden_states: Tensor, memory: Tensor, *, gate: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.first(memory) * gate
        return self.second(hidden_states) + kept, kept


class Mixing(nn.Module):
    """Calls it with positions and names."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = Mixer()
        self.last = Mixer()

    def forward(self, x: Tensor, before: Tensor, gate: Tensor) -> Tensor:
        states, memory = self.mixer(x, gate=gate, memory=before)
        out, again = self.last(hidden_states=states, memory=memory, gate=gate)
        return out * again


def _imported(module: type[nn.Module], **inputs: Any) -> Imported:
    found = import_module(lambda: (module(), inputs), Wanted("names", {}))
    assert found.report["largest difference"] <= EXACT
    return found


def test_arguments_and_results_have_the_names_and_the_order_of_forward() -> None:
    text = _imported(Mixing, x=torch.rand(3, 4), before=torch.rand(3, 4), gate=torch.rand(3, 4)).text
    assert "    x: [batch, second_in], memory: [batch, first_in], gate: [batch, features]\n" in text
    assert "states, memory = mixer(x, before, gate)\n    out, again = last(states, memory, gate)\n" in text
    assert text.count("    return second(x) + kept, kept\n") == 1


def test_marks_leave_nothing_in_the_trace_and_no_hook_on_the_module() -> None:
    module, inputs = Mixing(), {name: torch.rand(3, 4) for name in ("x", "before", "gate")}
    traced, program = trace(module, inputs, "names")
    assert all("slice" not in node.op for node in traced.nodes) and "slice" not in str(program.graph)
    assert not any(each._forward_pre_hooks or each._forward_hooks for each in module.modules())
    given = [(mark.name, mark.at) for mark in traced.marks if mark.call.endswith("mixer")]
    assert sorted(given) == [("", 0), ("", 1), ("gate", 2), ("hidden_states", 0), ("memory", 1)]


class Tied(nn.Module):
    """A head of the words' own matrix, in a module that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.head = Head()
        self.head.decoder.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids))


class Head(nn.Module):
    """A product with the matrix, and a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Linear(4, 9, bias=False)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, features: Tensor) -> Tensor:
        return self.decoder(features * self.scale)


def test_a_matrix_of_another_layer_has_the_name_of_the_module_that_is_tied_to_it() -> None:
    found = _imported(Tied, ids=torch.randint(0, 9, (2, 3)))
    assert "  forward(features: [batch, seq, d], decoder_weight: [vocab, d]) -> [batch, seq, vocab] {" in found.text
    assert "return head(words(ids), words.weight)" in found.text
    assert "tied head.decoder.weight = words.weight\n" in found.names


class Lined(nn.Module):
    """Names that are given again, in a function, and in several lines."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        y = y / _length(y)
        z = self.two(
            y  # on a line of its own
        )
        return y * z + z * _length(z)


def _length(values: Tensor) -> Tensor:
    squares = values * values
    total = squares.sum(-1, keepdim=True)
    return total + squares.mean(-1, keepdim=True)


def test_values_that_need_a_name_have_that_of_the_authors_line() -> None:
    """Lines of functions name what they compute; what has the name of another value gets a number."""
    text = _imported(Lined, x=torch.rand(3, 4)).text
    body = text[text.index("forward(") :]
    assert "    y = one(x)\n" in body and "    y2 = y / (" in body and "    z = two(y2)\n" in body
    assert "    squares = y * y\n" in body and "    squares2 = z * z\n" in body and "h = " not in body


def test_a_statement_of_several_lines_names_its_value() -> None:
    lines, start = Lines(), inspect.getsourcelines(Lined.forward)[1]
    stack = f'File "{__file__}", line {start + 4}, in forward\n  File "{__file__}", line 1, in _length\n'
    (level,) = lines.levels(stack)
    assert [line.names for line in level] == [("z",), ()]
    assert level[0].wish is not None and not level[0].wish.again


class Skipped(nn.Module):
    """Two images."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 3, 2, stride=2)
        self.other = nn.Conv2d(2, 3, 1)
        self.join = Join()

    def forward(self, image: Tensor) -> Tensor:
        return self.join(self.up(image), self.other(image))


class Join(nn.Module):
    """A convolution of both."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.conv(torch.cat([skip, x[..., ::2, ::2]], dim=1))


def test_dims_of_a_second_image_have_its_name() -> None:
    text = _imported(Skipped, image=torch.rand(2, 2, 4, 6)).text
    assert "skip_height, skip_width]" in text and "height2" not in text


class Placed(nn.Module):
    """Adds a vector for each place of an image, all of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 2, stride=2)
        self.start = nn.Parameter(torch.zeros(1, 1, 8))
        self.spot = nn.Embedding(7, 8)
        self.register_buffer("places", torch.arange(7), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patch(image).flatten(2).transpose(1, 2)
        return torch.cat([self.start.expand(len(image), -1, -1), patches], dim=1) + self.spot(self.places)


def test_a_table_that_is_read_whole_is_numbered_by_its_own_dim() -> None:
    text = _imported(Placed, image=torch.rand(2, 3, 4, 6)).text
    assert "positions: dim = 7" in text and "spot(arange(positions))" in text and " = 7\n" not in text


class Pairs(nn.Module):
    """Two widths side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(5, 3)
        self.right = nn.Linear(5, 4)
        self.out = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.left(x), self.right(x)], dim=1))


def test_a_width_that_is_put_together_is_declared_as_a_sum() -> None:
    text = _imported(Pairs, x=torch.rand(3, 5)).text
    assert "  layer out = Linear(left_out + right_out, hidden)\n" in text and "= 7" not in text


class Twice(Pairs):
    """They are normed, too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(7)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(torch.cat([self.left(x), self.right(x)], dim=1)))


def test_a_sum_that_two_layers_have_is_declared() -> None:
    text = _imported(Twice, x=torch.rand(3, 5)).text
    assert " = left_out + right_out\n" in text and text.count("left_out + right_out") == 1


class Scaled(nn.Module):
    """Numbers that are roots of the width, and one that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.head = nn.Linear(6, 4, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids) * 6**0.5
        return self.head(x / 6**0.5 * 6**-0.5 * 2**-0.5) * 4**-0.5


def test_a_root_of_a_width_is_written_by_its_dim() -> None:
    text = _imported(Scaled, ids=torch.randint(0, 9, (2, 3))).text
    assert "    x = table(ids) * d ** 0.5\n" in text and ") * 0.5\n" in text
    assert "x / d ** 0.5 * d ** -0.5 * 0.7071067811865476" in text


class First(nn.Module):
    """A list of which the first has one layer more, deep inside."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Outer(at) for at in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Outer(nn.Module):
    """It has one inside."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.inner, self.fc = Inner(at), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.inner(x))


class Inner(nn.Module):
    """The first has a bias of distances."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.bias_of_distances = nn.Linear(4, 4) if at == 0 else None

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if self.bias_of_distances is None else self.fc(x) + self.bias_of_distances(x)


def test_the_first_of_a_list_is_called_so_before_what_it_has_deep_inside() -> None:
    text = _imported(First, x=torch.rand(2, 4)).text
    assert "model OuterFirst(" in text and "model InnerBiasOfDistances(" in text


@pytest.mark.parametrize(("head", "text", "lines"), [
    ("x = ", "f(a, b)", ["x = f(a, b)"]),
    ("x = ", f"f({'a' * 60}, [b, c], {'d' * 60})", ["x = f(", f"{'a' * 60}, [b, c],", "d" * 60, ")"]),
    ("x = ", f"y |> {'f' * 60} |> g(a, b) |> {'h' * 60}", [f"x = y |> {'f' * 60} |> g(a, b)", f"|> {'h' * 60}"]),
    ("x = ", f"f({'a' * 50}) + g({'b' * 50})", [f"x = f({'a' * 50}) + g({'b' * 50})"]),
])  # fmt: skip
def test_a_wide_statement_is_cut_where_a_line_may_end(head: str, text: str, lines: list[str]) -> None:
    found = broken(head, text)
    assert found is not None and found.splitlines() == lines


def test_what_no_line_may_hold_is_not_broken() -> None:
    assert broken("x = ", " + ".join(["a" * 20] * (MOST // 20))) is None
    assert broken("x = ", f"f({'a' * WIDE})") is None


class Classifier(nn.Module):
    """Widths of its own arguments, twice and three times these, in a list too."""

    def __init__(self, features: int = 5, inner: int = 4, more: int = 2, classes: int = 3) -> None:
        super().__init__()
        more = more + 7
        self.up = nn.Linear(in_features=features, out_features=inner)
        self.steps = nn.Sequential(nn.Linear(inner, 2 * inner), nn.ReLU(), nn.Linear(2 * inner, more))
        if classes > 3:
            self.down = nn.Linear(more, more)
        else:
            self.down = nn.Linear(more, inner * 3)
        self.out = nn.Linear(3 * inner, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.down(self.steps(torch.relu(self.up(x)))))


def test_dims_of_the_whole_have_the_names_of_its_arguments() -> None:
    """One that is so many times another is written so; what the `__init__` assigns to is no argument any more."""
    text = _imported(Classifier, x=torch.rand(2, 5)).text
    assert "model Classifier(features: dim = 5, inner: dim = 4, steps_out: dim = 9, classes: dim = 3) {" in text
    assert "layer steps_0 = Linear(inner, 2 * inner)\n  layer steps_2 = Linear(2 * inner, steps_out)\n" in text
    assert "layer down = Linear(steps_out, 3 * inner)\n  layer out = Linear(3 * inner, classes)\n" in text


class Picture(nn.Module):
    """A width of channels, beside that of an image, and a sum of all that a layer gives."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 1)
        self.more = nn.Conv2d(width, 2 * width, 1)
        self.scale = nn.Parameter(torch.ones(2 * width))

    def forward(self, image: Tensor) -> Tensor:
        return self.more(self.conv(image)).mean((2, 3)) * self.scale


def test_a_multiple_that_a_parameter_has_is_declared_and_an_image_keeps_its_width() -> None:
    text = _imported(Picture, image=torch.rand(2, 3, 4, 5)).text
    assert "image: [batch, channels, height, width]" in text and "  dim out = 2 * hidden\n" in text
    assert "layer more = Conv2d(hidden, out, 1)" in text and "param scale: [out] = ones()" in text


def test_what_no_line_says_has_no_arguments() -> None:
    """Sizes that disagree with what the arguments say, and parts of another class."""
    module = Classifier()
    assert set(arguments(module)) == {"up", "steps.0", "steps.1", "steps.2", "out"}
    assert arguments(module)["steps.2"] == {"in_features": Times("inner", 2)}
    module.out = nn.Identity()  # type: ignore[assignment]
    assert "out" not in arguments(module) and arguments(nn.Linear(2, 3)) == {}

    class Narrow(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(12, 6)

    assert "classes: dim = 6" not in _imported(Narrow, x=torch.rand(2, 5)).text


class Patched(nn.Module):
    """Patches of an image with a vector for each, and a layer of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 2, stride=2)
        self.spot = nn.Embedding(16, 8)
        self.mix = Mix()
        self.register_buffer("places", torch.arange(16).expand(1, -1), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patch(image).flatten(2).transpose(1, 2)
        return self.mix(patches + self.spot(self.places))


class Mix(nn.Module):
    """A layer of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.fc(x))


def test_an_image_whose_patches_have_the_names_of_its_dims_has_names_of_its_own() -> None:
    """A dim that is called with a product has the name of none of its parts."""
    text = _imported(Patched, image=torch.rand(2, 3, 8, 8)).text
    assert "image: [batch, channels, image_height, image_width]" in text
    assert "model Mix(d: dim) {" in text and "forward(x: [batch, seq, d])" in text


class Behind(nn.Module):
    """Positions behind an offset, and by what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.spot, self.other = nn.Embedding(9, 4), nn.Embedding(12, 4), nn.Embedding(14, 4)

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != 1).long()
        spots = self.spot(torch.arange(ids.shape[1]) + 2)
        return self.words(ids) + spots + self.other(mask.cumsum(1) * mask + 1)


def test_the_rows_of_tables_that_are_looked_up_by_counts_are_lengths() -> None:
    text = _imported(Behind, ids=torch.randint(0, 9, (2, 3))).text
    assert "layer words = Embedding(vocab, d)" in text
    assert "layer spot = Embedding(max_len, d)" in text and "layer other = Embedding(max_len2, d)" in text


class Attends(nn.Module):
    """Attention with layers of its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Stacked(nn.Module):
    """Two of these, and a configuration without the width of a head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(d_model=width, num_heads=heads)
        self.left, self.right = Attends(width, heads), Attends(width, heads)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + torch.relu(self.right(x))


@pytest.mark.parametrize(("heads", "width"), [(2, 3), (4, 4)])
def test_heads_of_one_number_have_one_width_and_are_never_that(heads: int, width: int) -> None:
    found = import_module(
        lambda: (Stacked(heads * width, heads), {"x": torch.rand(2, 5, heads * width)}), Wanted("names", {})
    )
    assert found.report["largest difference"] <= EXACT
    assert f"model Stacked(d: dim = {heads * width}, heads: dim = {heads}, head_dim: dim = {width}) {{" in found.text
    assert found.text.count(" = Attends(d, heads, head_dim)") == 2


class Kinds(nn.Module):
    """Has a layer, a parameter and dims of the names that its inputs have."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Embedding(5, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.out = nn.Linear(8, 3)

    def forward(self, batch: Tensor, kind: Tensor, scale: Tensor, batch_mask: Tensor) -> Tensor:
        return self.out(batch * self.scale * scale + self.kind(kind)) * batch_mask


def _kinds() -> dict[str, Tensor]:
    return {"batch": torch.rand(4, 8), "kind": torch.randint(0, 5, (4,)), "scale": torch.rand(4, 8),
            "batch_mask": torch.rand(4, 3)}  # fmt: skip


def test_inputs_keep_their_names_whatever_else_has_them() -> None:
    found = _imported(Kinds, **_kinds())
    assert _forward_of(found.text, "Kinds") == [*_kinds()]
    assert "layer kind_layer = Embedding" in found.text and "param scale_param: [" in found.text
    assert "kind_layer.weight = kind.weight\n" in found.names and "scale_param = scale\n" in found.names


def test_no_dim_is_given_the_name_of_an_input() -> None:
    for wanted in (
        Wanted("names", {"scale": ["kind", "d"]}),
        Wanted("names", {}, names=parse("dim features = kind", "x")),
    ):
        with pytest.raises(RunError, match="kind") as error:
            import_module(lambda: (Kinds(), _kinds()), wanted)
        assert error.value.code == "SH600"


class Nested(nn.Module):
    """Takes a dict and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, batch: dict[str, Tensor], images: list[Tensor]) -> Tensor:
        return self.out(batch["x"] + images[0] * images[1]) * batch["mask"]


class Deeper(nn.Module):
    """Takes two dicts with the same keys, and hands them on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Nested()

    def forward(self, *, text: dict[str, Tensor], image: dict[str, Tensor], extra: list[Tensor]) -> Tensor:
        return self.inner(text, extra) + self.inner(batch=image, images=extra)


def _batch() -> dict[str, Tensor]:
    return {"x": torch.rand(4, 8), "mask": torch.rand(4, 3)}


def test_tensors_in_dicts_and_lists_are_inputs() -> None:
    images = [torch.rand(4, 8), torch.rand(4, 8)]
    text = _imported(Nested, batch=_batch(), images=images).text
    head = "x: [batch, out_in], mask: [batch, features], images_0: [batch, out_in], images_1: [batch, out_in]"
    assert f"    {head}\n" in text
    assert "    return out(x + images_0 * images_1) * mask\n" in text
    text = _imported(Deeper, text=_batch(), image=_batch(), extra=tuple(images)).text
    names = ["text_x", "text_mask", "image_x", "image_mask", "extra_0", "extra_1"]
    assert _forward_of(text, "Deeper") == names


def _forward_of(text: str, model: str) -> list[str]:
    """The names of the inputs of a model."""
    head = text[text.index("forward(", text.index(f"model {model}(")) :]
    return re.findall(r"(\w+): ", head[: head.index(") ->")])


@pytest.mark.parametrize(
    ("inputs", "fact"),
    [
        ({"batch": {"x": torch.rand(4, 8), "mask": 3}}, "gives an input `mask` that is no tensor: it is 3"),
        ({"images": [torch.tensor(1.0)]}, "gives an input `images_0` that is a tensor without dims"),
        ({"x": None}, "gives an input `x` that is no tensor: it is None"),
        ({"a": {"b": {"c": torch.rand(2)}, "b_c": torch.rand(2)}, "c": torch.rand(1), "b_c": torch.rand(1)},
         "two inputs of `names` would be called `a_b_c`"),
    ],
)  # fmt: skip
def test_what_is_no_input_is_named(inputs: dict[str, Any], fact: str) -> None:
    with pytest.raises(RunError) as error:
        import_module(lambda: (Nested(), inputs), Wanted("names", {}))
    assert error.value.code == "SH600" and fact in error.value.message
