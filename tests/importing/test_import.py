"""What comes out of importing a module: a program in its one form, that computes what the module computes."""

from __future__ import annotations

import copy
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.errors import RunError
from shardlang.importing import compare as comparison
from shardlang.importing.example import load
from shardlang.importing.imported import Imported, Wanted, import_module
from shardlang.sources.source import Source
from tests.importing import modules

HERE = Path(__file__).parent
MODULES = ("mlp", "sequential", "words", "tiny", "twice", "gated", "images")
# The float64 of a value is right to this, relative to its largest number.
EXACT = 1e-9


def imported(name: str, **wanted: object) -> Imported:
    return import_module(getattr(modules, name), Wanted(f"modules:{name}", wanted.pop("dims", {}), **wanted))


@pytest.mark.parametrize("name", MODULES)
def test_text_and_names_are_the_golden_ones(name: str) -> None:
    """`import_module` itself compares values and gradients with the module's; a second time gives the same bytes. The
    text is in its one form and has no mistakes.
    """
    found, again = imported(name), imported(name)
    assert (found.text, found.names) == (again.text, again.names)
    assert found.report["largest difference"] <= EXACT and found.report["unnamed dims"] == []
    assert found.text == (HERE / "golden" / f"{name}.shard").read_text("utf-8")
    assert found.names == (HERE / "golden" / f"{name}.map").read_text("utf-8")
    source, sink = Source("m.shard", found.text), Sink()
    assert driver.format_source(source, sink) == found.text
    assert driver.check_source(source, sink) is not None
    assert not sink.found


def test_dims_have_the_names_that_are_given() -> None:
    text = imported("mlp", dims={"x": ["rows", "pixels"]}).text
    assert "forward(x: [rows, pixels]) -> [rows, out]" in text and "model MLP(pixels: dim = 12" in text
    with pytest.raises(RunError, match="`x` has 2 dims, and --dims names 1"):
        imported("mlp", dims={"x": ["rows"]})


FAULTS = {
    "relu": ("relu(fc1(x))", "tanh(fc1(x))"),
    "a layer twice": ("return fc2(dropout(h, p = 0.1))", "return fc2(dropout(h * 1.000001, p = 0.1))"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_text_that_computes_something_else_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = comparison.ours

    def wrong(text: str, *rest: object) -> comparison.Side:
        assert FAULTS[fault][0] in text
        return ours(text.replace(*FAULTS[fault]), *rest)

    monkeypatch.setattr("shardlang.importing.attempt.ours", wrong)
    with pytest.raises(RunError, match=r"result 1 differs from the module's") as error:
        imported("mlp")
    assert error.value.code == "SH607"


def test_a_gradient_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result stays as it is."""
    ours, twice = comparison.ours, "relu(2.0 * fc1(x) - detach(fc1(x)))"
    wrong = lambda text, *rest: ours(text.replace("relu(fc1(x))", twice), *rest)  # noqa: E731
    monkeypatch.setattr("shardlang.importing.attempt.ours", wrong)
    with pytest.raises(RunError, match=r"the gradient of `fc1.weight` differs from the module's") as error:
        imported("mlp")
    assert error.value.code == "SH607"


class Changing(torch.nn.Module):
    """Another function when it is called again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Other()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, 0) + self.inner(x, 1)


class Other(torch.nn.Module):
    """A product, or a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, time: int) -> torch.Tensor:
        return x + self.scale if time else x * self.scale


def test_a_layer_that_computes_something_else_when_it_is_called_again_is_refused() -> None:
    with pytest.raises(RunError, match="`inner`, which computes something else when it is called again") as error:
        import_module(lambda: (Changing(), {"x": torch.rand(2, 4)}), Wanted("changing", {}))
    assert error.value.code == "SH601"


def test_a_text_with_a_mistake_is_a_fault_that_says_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = comparison.ours
    wrong = lambda text, *rest: ours(text.replace("relu(fc1(x))", "relu(fc9(x))"), *rest)  # noqa: E731
    monkeypatch.setattr("shardlang.importing.attempt.ours", wrong)
    with pytest.raises(RunError, match=r"has a mistake, SH\d+ in `h = relu\(fc9\(x\)\)`: ") as error:
        imported("mlp")
    assert error.value.code == "SH607"


def test_names_that_would_be_one_are_told_apart() -> None:
    found = imported("statistics", accept=frozenset(("SH604",)))
    assert "a_b2.weight = a.b.weight\n" in found.names and "\na_b.weight = a_b.weight\n" in found.names
    assert "layer gr__e = Linear(" in found.text


def test_a_buffer_that_is_updated_and_then_read_is_training_that_differs() -> None:
    with pytest.raises(RunError, match="`seen` is updated in training by the module") as error:
        imported("statistics")
    assert error.value.code == "SH604"
    text = imported("statistics", accept=frozenset(("SH604",))).text
    assert "## SH604: `seen` is updated in training by the module, and would not be.\n" in text


def test_parameters_that_no_result_depends_on_are_told() -> None:
    found = imported("statistics", accept=frozenset(("SH604",)))
    assert found.report["unused parameters"] == ["unused.weight", "unused.bias"]
    assert found.names.endswith("no result depends on.\nignore unused.weight\nignore unused.bias\n")


REFUSED = {
    "a result of none": ("torch.zeros(3), x", "SH601", r"a result that is a tensor that is computed from none, \[3\]"),
    "a size by values": ("x[x > 0.5]", "SH602", r"how many numbers `return x\[x > 0.5\]` gives, refused.py:7"),
    "arguments of another form": (
        "torch.nn.functional.adaptive_avg_pool1d(x, 3)",
        "SH601",
        r"`aten.adaptive_avg_pool1d` with such arguments \(a tensor, \[3\]\): ",
    ),
    "a branch by values": (
        "x if x.sum() > 0 else -x",
        "SH602",
        r"depend on values of the data: `return x if x.sum\(\) > 0 else -x`, refused.py:7\n",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_imported_is_said_and_nothing_else(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result, code, said = REFUSED[case]
    path = tmp_path / "refused.py"
    path.write_text(f"""
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return {result}


def build():
    return Net(), {{"x": torch.rand(2, 4)}}
""")
    with pytest.raises(RunError, match=said) as error:
        import_module(load(f"{path}:build"), Wanted("refused.py:build", {}))
    assert error.value.code == code and "".join(capfd.readouterr()) == ""
    sys.modules.pop("refused")


def test_a_mask_that_no_word_says_is_refused() -> None:
    with pytest.raises(RunError, match="a tensor that is computed from none, ") as error:
        imported("spotted")
    assert error.value.code == "SH601"


def test_a_mask_that_hides_what_is_far_is_a_window() -> None:
    assert "attention(q2, k, v, causal = true, window = 3)" in imported("window").text


IDIOMS = {
    "rotary of another sign": ("turned(self.q(x).view", "-turned(self.q(x).view", None),
    "halves the other way": ("[-x[..., half:], x[..., :half]]", "[-x[..., :half], x[..., half:]]", "SH601"),
    "tables of no base": ("angles.cos(), angles.sin()", "angles.cos(), angles.cos()", "SH601"),
    "softmax over queries": ("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=-2)", None),
    "another scale": ("transpose(-2, -1) / 2.0", "transpose(-2, -1) / 3.0", None),
}


@pytest.mark.parametrize("fault", IDIOMS)
def test_what_is_nearly_an_idiom_is_not_taken_for_it(fault: str, tmp_path: Path) -> None:
    """It is imported as what it is, which the comparison holds, or refused."""
    old, new, code = IDIOMS[fault]
    text = Path(modules.__file__).read_text("utf-8")
    assert old in text
    path = tmp_path / "nearly.py"
    path.write_text(text.replace(old, new), "utf-8")
    spec = importlib.util.spec_from_file_location("nearly", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if code is None:
        found = import_module(module.gated, Wanted("nearly:gated", {}))
        assert found.text.replace("nearly", "modules") != (HERE / "golden" / "gated.shard").read_text("utf-8")
    else:
        with pytest.raises(RunError) as error:
            import_module(module.gated, Wanted("nearly:gated", {}))
        assert error.value.code == code


class Square(torch.nn.Module):
    """A matrix that has as many rows as columns, beside what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = _Mix()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(x)


class _Mix(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.matrix)


def test_the_two_dims_of_a_square_stay_two_though_all_calls_pass_one() -> None:
    text = import_module(lambda: (Square(), {"x": torch.rand(2, 8)}), Wanted("here:square", {})).text
    rows, columns = re.findall(r"param matrix: \[(\w+), (\w+)\]", text)[0]
    assert rows != columns and "layer mix = _Mix(features, features)" in text


class Halves(torch.nn.Module):
    """Two halves beside each other, through a layer as wide as both; then a layer of one width again."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(wide, wide), torch.nn.Linear(wide, wide)
        self.down = torch.nn.Linear(2 * wide, wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.cat([torch.relu(self.left(x)), self.right(x)], dim=1))


def test_dims_inside_of_a_model_are_declared_there_where_all_calls_agree() -> None:
    def factory() -> modules.Example:
        return torch.nn.Sequential(Halves(8), torch.nn.Linear(8, 12), Halves(12)), {"input": torch.rand(2, 8)}

    text = import_module(factory, Wanted("here:halves", {})).text
    found = re.search(r"model Halves\((\w+: dim, )?out: dim\) \{\n((  dim \w+ = .*\n)+)", text)
    assert found is not None, text
    assert sorted(line.split(" = ")[1] for line in found[2].splitlines()) == ["out", "out"]
    assert "Linear(hidden + right_out, out" in text


def test_a_start_that_is_uniform_is_not_taken_for_a_normal_one() -> None:
    def factory() -> modules.Example:
        net = torch.nn.Sequential(torch.nn.Linear(32, 64))
        torch.nn.init.uniform_(net[0].weight, -0.5, 0.5)
        return net, {"input": torch.rand(2, 32)}

    text = import_module(factory, Wanted("here:uniform", {})).text
    assert "= uniform(-0.5, 0.5)" in text and "normal" not in text


def test_a_bias_beside_a_norm_of_its_width_starts_as_its_own_weight_says() -> None:
    """In a Sequential the names of both differ in numbers alone."""

    def factory() -> modules.Example:
        layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3)]
        return torch.nn.Sequential(*layers), {"input": torch.rand(2, 3, 8, 8)}

    text = import_module(factory, Wanted("here:convolutions", {})).text
    assert "BatchNorm2d(hidden)" in text and "Conv2d(channels, hidden, 3)" in text and "start" not in text


def test_copies_of_a_layer_start_as_it_does() -> None:
    """torch's encoder copies its layer, so the same numbers are drawn for each."""

    def factory() -> modules.Example:
        layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16))
        return torch.nn.Sequential(*(copy.deepcopy(layer) for _ in range(40))), {"input": torch.rand(2, 16)}

    assert "Linear(" in import_module(factory, Wanted("here:copies", {})).text
