"""Modules as people write them: images cut into patches, sequences first, functions with gradients of their own, steps
of training alone, names of all kinds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardlang.errors import RunError
from shardlang.importing.compare import Side, compare
from shardlang.importing.imported import Imported, Wanted, import_module
from shardlang.importing.steps.nodes import Stored
from shardlang.importing.steps.starts import _plain_above, starts
from tests.check.checked import checked

EXACT = 1e-9


class Net(nn.Module):
    """A layer behind a function of the module and its inputs."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def imported(function: Callable[..., Any], x: Tensor, *accept: str, **layers: Callable[[], nn.Module]) -> Imported:
    def build() -> tuple[nn.Module, dict[str, Tensor]]:
        return Net(function, **{name: made() for name, made in layers.items()}), {"x": x}

    found = import_module(build, Wanted("m:build", {}, frozenset(accept)))
    assert found.report["largest difference"] <= EXACT
    return found


def refused(function: Callable[..., Any], x: Tensor, code: str, **layers: Callable[[], nn.Module]) -> RunError:
    with pytest.raises(RunError) as error:
        imported(function, x, **layers)
    assert error.value.code == code
    return error.value


def test_an_image_that_is_cut_into_patches_has_its_dims_as_formals() -> None:
    def patches(net: Net, x: Tensor) -> Tensor:
        rows, channels, high, wide = x.shape
        cut = x.view(rows, channels, high // 2, 2, wide // 2, 2).permute(0, 2, 4, 3, 5, 1)
        return net.fc(cut.reshape(rows, (high // 2) * (wide // 2), 4 * channels))

    text = imported(patches, torch.rand(3, 2, 6, 10)).text
    assert "height: dim = 3" in text and "width: dim = 5" in text


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, model: Tensor, train: Tensor) -> tuple[Tensor, Tensor]:
        found: Tensor = self.attention(model, train, train)[0]
        return found, found.sum()


def both(**shown: Any) -> Imported:
    """Two sequences that come before the batch, under names that a `train` has for other things."""
    build = lambda: (Both(), {"model": torch.rand(5, 3, 8), "train": torch.rand(7, 3, 8)})  # noqa: E731
    return import_module(build, Wanted("m:build", {}, **shown))


def test_sequences_may_come_before_the_batch_and_a_result_may_be_one_number() -> None:
    assert both().report["largest difference"] <= EXACT


def test_a_train_for_sequences_before_the_batch_is_refused_with_what_they_begin_with() -> None:
    with pytest.raises(RunError, match=r"`model` with `[a-z]+`, `train` with `[a-z_]+`") as error:
        both(train=True)
    assert error.value.code == "SH600" and "leave `--train` out" in error.value.help


def test_fields_of_a_train_have_names_of_their_own() -> None:
    class Names(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, loss: Tensor, data: Tensor, out: Tensor) -> Tensor:
            return self.fc(loss) * data + out  # type: ignore[no-any-return]

    build = lambda: (Names(), {name: torch.rand(4, 8) for name in ("loss", "data", "out")})  # noqa: E731
    text = import_module(build, Wanted("m:build", {}, train=True)).text
    assert "data = random(loss2: [batch_size, 8], data2: [batch_size, 8], out: [batch_size, 8], batches = 4)" in text
    assert "out2 = model(loss2, data2, out)" in text


class Losing(nn.Module):
    """Scores, and a loss by labels."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.fc(x)
        return scores, F.cross_entropy(scores, labels)


def test_a_loss_is_refused_with_a_word_on_where_it_belongs_and_an_input_that_nothing_reads_is_told() -> None:
    build = lambda: (Losing(), {"x": torch.rand(3, 8), "labels": torch.tensor([0, 1, 3])})  # noqa: E731
    with pytest.raises(RunError, match="cross_entropy_loss") as error:
        import_module(build, Wanted("m:build", {}))
    assert error.value.code == "SH601" and error.value.help.startswith("a loss belongs in `train`: ")
    with pytest.raises(RunError, match="no result that is wanted depends on `labels`") as error:
        import_module(build, Wanted("m:build", {}, output="0"))
    assert error.value.code == "SH600"


CHANCE: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "a bound": lambda net, x: net.fc(x)[:, : x.shape[1] // 3],
    "a divisor": lambda net, x: net.fc(x) / (x.shape[1] // 4),
    "many": lambda net, x: net.fc(x) * (1 + x.shape[1] // 100),
}


@pytest.mark.parametrize("name, size", [("a bound", 6), ("a divisor", 6), ("many", 150)])
def test_a_number_on_which_neighbouring_sizes_agree_by_chance_is_found(name: str, size: int) -> None:
    refused(CHANCE[name], torch.rand(2, size, 8), "SH603")


def test_a_module_may_do_otherwise_at_sizes_that_the_program_does_not_take() -> None:
    def places(net: Any, x: Tensor) -> Tensor:
        cut = net.cut(x).flatten(2).mT
        table = net.table.weight
        # As networks of images stretch their table of places for images of another size.
        return net.fc(cut + (table if cut.shape[1] == len(table) else table.mean(0, keepdim=True)))

    layers = {"cut": lambda: nn.Conv2d(3, 8, 4, 4), "table": lambda: nn.Embedding(6, 8)}
    assert "+ table" in imported(places, torch.rand(5, 3, 8, 12), **layers).text


def test_a_factor_that_is_the_root_of_the_batch_by_chance_is_a_number() -> None:
    text = imported(lambda net, x: net.fc(x) + x * 2**-0.5, torch.rand(2, 6, 8)).text
    assert "batch **" not in text and "0.70710678118654" in text


class Squared(torch.autograd.Function):
    """Half of the gradient, or all of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.times = times
        return x * x

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.times * ctx.saved_tensors[0] * slope, None


class Through(torch.autograd.Function):
    """A sign, with the gradient of what it is the sign of."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.where(x > 0, 1.0, -1.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        return slope


@pytest.mark.parametrize(
    "function, name",
    [
        (lambda net, x: Squared.apply(net.fc(x), 1.0), "Squared"),
        (lambda net, x: Through.apply(net.fc(x)) + net.fc(x), "Through"),
    ],
)
def test_a_gradient_of_its_own_is_told(function: Callable[..., Any], name: str) -> None:
    error = refused(function, torch.rand(4, 8), "SH604")
    assert error.message.startswith(f"`{name}` has a backward of its own that is not the gradient of its forward")
    assert f"## SH604: `{name}`" in imported(function, torch.rand(4, 8), "SH604").text


def test_a_backward_that_is_the_gradient_of_its_forward_is_no_difference() -> None:
    """Behind a norm of few rows, whose bias has a gradient of 0 in truth."""
    made = imported(
        lambda net, x: Squared.apply(net.norm(net.fc(x)), 2.0), torch.rand(4, 8), norm=lambda: nn.BatchNorm1d(8)
    )
    assert "model BatchNorm1d(" in made.text


def noisy(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.fc(x)
    return y + torch.randn_like(y) * torch.rand_like(y) if net.training else y


def test_what_only_training_does_is_told_and_random_numbers_like_a_tensor_are_known() -> None:
    error = refused(noisy, torch.rand(4, 8), "SH604")
    assert error.message.startswith(
        "in evaluation (`module.eval()`) the module computes something else: result 1 differs"
    )
    text = imported(noisy, torch.rand(4, 8), "SH604").text
    assert "randn(-> [batch, out])" in text and "rand(-> [batch, out])" in text


def test_results_of_training_alone_are_told() -> None:
    def more(net: Net, x: Tensor) -> Any:
        return (net.fc(x), x.sum(1)) if net.training else net.fc(x)

    assert "it gives other results" in refused(more, torch.rand(4, 8), "SH604").message


def test_dropout_and_norms_of_a_batch_are_no_difference_of_evaluation() -> None:
    layers = {"norm": lambda: nn.BatchNorm1d(8), "drop": lambda: nn.Dropout(0.5)}
    imported(lambda net, x: net.drop(net.norm(net.fc(x))), torch.rand(4, 8), **layers)


SIZED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), "interpolate(conv(x), scale_factor = 2)"),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=True),
                 'interpolate(conv(x), scale_factor = 0.5, mode = "bilinear", align_corners = true)'),
    "a size": (lambda x: F.interpolate(x, size=(9, 7)), "interpolate(conv(x), size = (9, 7))"),
    "that of another": (lambda x: F.interpolate(F.max_pool2d(x, 2), size=x.shape[2:]), "size = (height, width)"),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZED)
def test_images_in_other_sizes(name: str) -> None:
    function, part = SIZED[name]
    made = imported(lambda net, x: function(net.conv(x)), torch.rand(2, 3, 8, 6), conv=lambda: nn.Conv2d(3, 4, 1))
    assert part in made.text, made.text


def test_one_dim_in_other_sizes() -> None:
    made = imported(lambda net, x: F.interpolate(net.conv(x), size=12, mode="linear"), torch.rand(2, 3, 8),
                    conv=lambda: nn.Conv1d(3, 4, 1))  # fmt: skip
    assert 'size = 12, mode = "linear"' in made.text


def test_a_limit_of_draws_is_not_rounded_below_the_largest() -> None:
    bound = 24**-0.5
    made = [{"w": torch.empty(72, 16).uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))}
            for seed in (1, 2, 3)]  # fmt: skip
    start = starts(made, [Stored("w")], frozenset(), given=False)[Stored("w")]
    assert start.kind == "uniform" and bound * 0.999 <= start.args[1] <= bound * 1.01
    assert _plain_above(0.2004, 0.01) == 0.21


def test_a_constant_that_vmap_makes_is_refused() -> None:
    def seen(net: Any, x: Tensor) -> Tensor:
        return net.fc(x) + torch.vmap(lambda at: at * 2)(torch.arange(x.shape[1]))[:, None]

    with pytest.raises(RunError, match=r"1 x `torch\.vmap`: ") as error:
        imported(seen, torch.rand(2, 6, 4), fc=lambda: nn.Linear(4, 4))
    assert error.value.code == "SH601" and "--opaque" not in error.value.help


def test_numbers_that_no_seed_changes_are_told_as_such() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("scale", torch.linspace(0.5, 1.5, 8) ** 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) * self.scale  # type: ignore[no-any-return]

    def factory() -> Any:
        return Table(), {"x": torch.rand(4, 8)}

    with pytest.raises(RunError, match="`scale` starts from numbers that are the same under three seeds") as error:
        import_module(factory, Wanted("m:build", {}))
    assert error.value.code == "SH608" and "`--weights FILE` writes its numbers" in error.value.help
    text = import_module(factory, Wanted("m:build", {}, weights="m.safetensors", map="m.map", train=True)).text
    assert "state scale: [out] = given()\n" in text and "layer fc = Linear(features, out)" in text
    assert 'init = safetensors("m.safetensors", names = "m.map")' in text


def forgets(layer: nn.Module) -> None:
    """A bias of the gates that forget, as it is often written; all else is torch's."""
    nn.init.ones_(layer.bias_ih_l0[8:16])  # type: ignore[index]


def orthogonal(layer: nn.Module) -> None:
    nn.init.orthogonal_(layer.weight_hh_l0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("change", [forgets, orthogonal])
def test_with_weights_a_recurrent_layer_that_starts_otherwise_is_given(
    kind: type[nn.RNNBase], change: Callable[[nn.Module], None]
) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = kind(6, 8, batch_first=True), kind(8, 8, batch_first=True)
            with torch.no_grad():
                change(self.second)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x)[0])[0]  # type: ignore[no-any-return]

    def factory() -> Any:
        return Two(), {"x": torch.rand(3, 5, 6)}

    with pytest.raises(RunError, match="`second") as error:
        import_module(factory, Wanted("m:build", {}))
    assert error.value.code == "SH608" and "`--weights FILE`" in error.value.help
    found = import_module(factory, Wanted("m:build", {}, weights="m.safetensors", map="m.map", train=True))
    assert found.report["largest difference"] <= EXACT and not found.report["accepted"]
    first, second = re.findall(r"layer \w+ = \w+\((.*)\)", found.text)
    assert "given" not in first and second.endswith(", given = true")
    without = re.sub(r"\n  init = .*", "", found.text)
    assert [m.partition(":")[0] for m in checked(without).messages] == ["SH226"]


def test_a_recurrent_layer_that_the_module_does_not_train_is_told() -> None:
    def still() -> nn.Module:
        return nn.GRU(8, 8, batch_first=True).requires_grad_(False)

    def through(net: Any, x: Tensor) -> Any:
        return net.gru(net.fc(x))[0]

    error = refused(through, torch.rand(3, 5, 8), "SH604", gru=still)
    assert error.message.startswith("`gru.weight_ih_l0` is not trained by the module, and is by a program (`gru`, ")
    assert "`freeze at gru`" in error.help
    assert "layer gru = GRU(" in imported(through, torch.rand(3, 5, 8), "SH604", gru=still).text


def test_with_weights_a_module_that_sets_a_seed_starts_as_its_numbers_look() -> None:
    class Seeded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.fc = nn.Linear(30, 30)
            self.table = nn.Parameter(torch.arange(30.0) ** 3)
            self.register_buffer("edges", torch.rand(30, 30))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x + self.table) @ self.edges

    text = import_module(lambda: (Seeded(), {"x": torch.rand(4, 30)}), Wanted("m:build", {}, weights="m.st")).text
    assert "use std.nn: Linear\n" in text and "param table: [features] = given()\n" in text
    assert "state edges: [hidden, out] = given()\n" in text


@pytest.mark.parametrize(
    "function, layers, lines",
    [
        (lambda net, x: net.gru(x)[0], {"gru": lambda: nn.GRU(8, 6, batch_first=True, bidirectional=True)},
         ["  1 x `aten.gru` in both directions: `gru`, "]),
        (lambda net, x: net.fc(x).sort(dim=-1)[0], {}, ["  1 x `aten.sort`: `the module`, "]),
    ],
)  # fmt: skip
def test_a_step_that_is_refused_is_told_once(
    function: Callable[..., Any], layers: dict[str, Any], lines: list[str]
) -> None:
    error = refused(function, torch.rand(2, 5, 8), "SH601", **layers)
    first, *told = error.message.splitlines()
    assert first == "the language has no word for one operation of the module"
    assert [line.startswith(begin) for line, begin in zip(told, lines, strict=True)] == [True]


def test_a_gradient_of_zero_in_truth_is_compared_with_what_rounding_moves() -> None:
    def side(slope: float) -> Side:
        return Side([torch.ones(1).double()], {"w": torch.ones(1).double(), "b": torch.tensor([slope]).double()})

    one, other = side(3e-14), side(-4e-14)
    assert compare(one, other, lambda: [side(-4e-14 + 2e-14)]) <= EXACT
    for moved in (lambda: [side(-4e-14 + 1e-16)], tuple):
        with pytest.raises(RunError, match="the gradient of `b` differs"):
            compare(one, other, moved)
