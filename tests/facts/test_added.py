"""Things that are added to a copy of the package, in as many files as CONTRIBUTING says: they train, are verified, and
are counted in bytes and seconds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import warm
from tests.end_to_end.curves import ROOT

DIGITS = (ROOT / "examples" / "digits.shard").read_text("utf-8")
# Its file -> a text of that file, and what stands there instead.
Patch = Mapping[str, Sequence[tuple[str, str]]]
LION: Patch = {
    "facts/optimizers.py": [(
        '    "adagrad": OptimizerFacts(',
        '    "lion": OptimizerFacts(\n'
        '        "Chen et al., 2023:\\n\\n    u := sign(b1 m + (1 - b1) g)\\n    w := w - lr (u + weight_decay w)\\n"\n'
        '        "    m := b2 m + (1 - b2) g",\n'
        '        {"lr": ..., "betas": (0.9, 0.99), "weight_decay": 0.0}, state=("mean",),\n'
        "    ),\n"
        '    "adagrad": OptimizerFacts(',
    )],
    "runtime/state/optimizers.py": [
        ('    "sgd": Sgd,', '    "lion": Lion, "sgd": Sgd,'),
        ("KINDS: dict[str, Any] = {", '''class Lion:
    def __init__(self, tensors, *, lr, betas=(0.9, 0.99), weight_decay=0.0):
        self.tensors, self.lr = [t for t in tensors if t.numel()], lr
        self.betas, self.weight_decay = betas, weight_decay
        self.means = [torch.zeros_like(t) for t in self.tensors]

    def step(self, lr):
        first, second = self.betas
        for tensor, gradient, mean in zip(self.tensors, _gradients(self.tensors), self.means, strict=True):
            tensor.sub_(lr * ((first * mean + (1 - first) * gradient).sign() + self.weight_decay * tensor))
            mean.mul_(second).add_(gradient, alpha=1 - second)

    def kept(self):
        return {"mean": self.means}

    def resumed(self, step, late=ALL):
        pass


KINDS: dict[str, Any] = {'''),
    ],
    "interpret/meaning/optimizers.py": [
        ('    "sgd": sgd,', '    "lion": lion, "sgd": sgd,'),
        ("RULES: Mapping[str, Rule] = {", '''def lion(x, gradient, memory, step, arguments):
    first, second = arguments.get("betas", (0.9, 0.99))
    mean = memory.get("m", torch.zeros_like(x))
    memory["m"] = second * mean + (1 - second) * gradient
    direction = (first * mean + (1 - first) * gradient).sign() + arguments.get("weight_decay", 0.0) * x
    return x - arguments["lr"] * direction


RULES: Mapping[str, Rule] = {'''),
    ],
}  # fmt: skip

# All forward, the last microbatch first, then all backward.
SCHEDULE: Patch = {
    "plan/pipeline/schedules.py": [
        ("def one_f_one_b(", """def turned(stages, coordinates, microbatches, rank):
    return [Action(rank, kind, m) for kind in "FB" for m in reversed(range(microbatches))]


def one_f_one_b("""),
        ('    "gpipe": ScheduleKind(gpipe, (1, 1)),', '    "turned": ScheduleKind(turned, (1, 1)),\n'
         '    "gpipe": ScheduleKind(gpipe, (1, 1)),'),
    ],
}  # fmt: skip
OPERATOR: Patch = {
    "ops/families/elementwise.py": [(
        '_unary("softplus"', '_unary("softsign", F, "x / (1 + |x|).", first)\n_unary("softplus"',
    )],
    "interpret/meaning/operators.py": [(
        '    "silu": _elementwise(', '    "softsign": _elementwise(lambda a: a / (1 + a.abs())),\n'
        '    "silu": _elementwise(',
    )],
}  # fmt: skip

# The length of a vector, whose dim may lie split over ranks.
LENGTH: Patch = {
    "ops/families/reductions.py": [(
        "# --- maxima", """def _emit_length(site: OpSite) -> Code:
    dims, group = _over_all(site)
    return RT("length", site.operands[0], dims, *([group] if group else []))


def _infer_length(site: CallSite) -> Inference | None:
    dims = positions(site, site.static["over"])
    return None if dims is None else _reduce(site, dims, site.operands[0].dtype, Split.INSIDE, False, ((1,), ()))


declare("length", (_X, _OVER), _infer_length, _emit_length, "The root of the sum of squares over the dims `over`.",
        saved=_saved_logsumexp)


# --- maxima""",
    )],
    "runtime/functions/statistics.py": [
        ('__all__ = [', '__all__ = ["length", '),
        ("class _Variance(Function):", """class _Length(Function):
    @staticmethod
    def forward(ctx, x, dims, group):
        result = summed(x.square().sum(dims, keepdim=True), group).sqrt()
        ctx.save_for_backward(x, result)
        return result.squeeze(dims)

    @staticmethod
    def backward(ctx, gradient):
        x, result = ctx.saved_tensors
        return gradient.view(result.shape) * x / result, None, None


def length(x, dims, group=None):
    return _Length.apply(x, dims, group)


class _Variance(Function):"""),
    ],
    "interpret/meaning/statistics.py": [(
        '    "logsumexp": _logsumexp,',
        '    "length": lambda call, x: x.square().sum(call.attrs["dims"]).sqrt(),\n    "logsumexp": _logsumexp,',
    )],
}  # fmt: skip

# Each value one place further along a dim, the last one in the place of the first: where the dim lies split, each rank
# gives its last to the next one.
TURN: Patch = {
    "ops/families/reductions.py": [(
        "# --- maxima", """def _turn_sent(op, factor):
    slice = op.elements(f for f in range(len(op.rule.factors)) if f != factor) * op.itemsizes[0] * op.times
    yield op.axes[factor], slice, slice * op.trained


TURN = InsideExchange("turn", "permute", _turn_sent)


def _infer_turned(site):
    dim, (type,) = single_position(site, site.static["over"]), site.operands
    factors = Factors(marked([type.dims[dim]], Split.INSIDE))
    dims = factors.dims(type.dims)
    factors.exchanged(dims[dim][0], TURN)
    return Inference((type,), factors.rule((dims,), (dims,), ((0,),)), {"dims": (dim,)})


def _emit_turned(site):
    dim = site.attrs["dims"][0]
    group = group_text(site, site.rule.operands[0][dim])
    return RT("turned", site.operands[0], dim, *([group] if group else []))


declare("turned", (_X, Param("over", "dims")), _infer_turned, _emit_turned, "One place further along a dim.",
        saved=nothing)


# --- maxima"""),
        ("import DimFactors, Split, Statistics", "import DimFactors, InsideExchange, Split, Statistics"),
    ],
    "runtime/functions/statistics.py": [
        ('__all__ = [', '__all__ = ["turned", '),
        ("class _Variance(Function):", """def turned(x, dim, group=None):
    last, others = x.narrow(dim, x.shape[dim] - 1, 1), x.narrow(dim, 0, x.shape[dim] - 1)
    if group is not None:
        last = collectives.permute(last, group, tuple((at - 1) % group.size for at in range(group.size)))
    return torch.cat([last, others], dim)


class _Variance(Function):"""),
    ],
    "interpret/meaning/statistics.py": [(
        '    "logsumexp": _logsumexp,',
        '    "turned": lambda call, x: x.roll(1, call.attrs["dims"]),\n    "logsumexp": _logsumexp,',
    )],
    "matched/table.py": [(
        '    "ring_attention": (HALVES, RING),', '    "ring_attention": (HALVES, RING),\n    "turned": ("turn",),',
    )],
}  # fmt: skip

ELEMENT_TYPE: Patch = {"facts/dtypes.py": [(
    '    "i32": DtypeFacts(4, "int32", "<i4"),',
    '    "i32": DtypeFacts(4, "int32", "<i4"),\n    "i16": DtypeFacts(2, "int16", "<i2"),',
)]}  # fmt: skip
WORDS = """\
use std.nn: Embedding, Linear
use std.clusters: h100_pod

dim batch = 8, seq = 4, words = 16, d = 8

model Net {
  layer table = Embedding(words, d)
  layer out = Linear(d, words)

  forward(ids: TYPE[batch, seq]) -> [batch, seq, words] {
    return out(table(cast(ids + ids - ids, i64)))
  }
}

strategy s {
  mesh dp = 2, tp = 2
  split batch over dp
  split words over tp
}

train {
  model = Net()
  data = random(ids: TYPE[batch, seq] < words, label: TYPE[batch, seq] < words, batches = 2)
  loss = cross_entropy(model(ids), cast(label, i64))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def patched(folder: Path, patch: Patch) -> Path:
    """A copy of the package in `folder`, with the patch; what is compiled already comes with it."""
    for name in ("shardlang", "stdlib"):
        shutil.copytree(ROOT / name, folder / name)
    for name, edits in patch.items():
        path = folder / "shardlang" / name
        text = path.read_text("utf-8")
        for old, new in edits:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        path.write_text(text, "utf-8")
    return folder


def shardc(tree: Path, *arguments: str) -> str:
    """What a command of the package in `tree` prints; it must end well."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", "from shardlang.cli.start import main; main()", *arguments]
    done = warm.run(command, cwd=tree, env=environment, kind=warm.Bare)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def with_lion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and two programs; digits' own optimizer keeps as much as lion."""
    tree, momentum = patched(tmp_path_factory.mktemp("lion"), LION), "sgd(lr = 0.1, momentum = 0.9)"
    for name, text in (("lion", DIGITS.replace(momentum, "lion(lr = 1e-3)")), ("momentum", DIGITS)):
        (tree / f"{name}.shard").write_text(f"use std.clusters: h100_pod\n{text}", "utf-8")
    return tree


def test_an_optimizer_is_added_in_three_files(with_lion: Path) -> None:
    assert len(LION) <= 3
    said = shardc(with_lion, "verify", "lion.shard", "--ranks", "2", "--strategy", "data_parallel")
    assert "2 ranks compute what one device does" in said


def test_bytes_and_seconds_of_an_added_optimizer_are_counted(with_lion: Path) -> None:
    lion, momentum = (
        json.loads(shardc(with_lion, "plan", f"{name}.shard", "--ranks", "8", "--json"))
        for name in ("lion", "momentum")
    )
    kept = lion["per_rank"]["optimizer_bytes"]
    assert kept == momentum["per_rank"]["optimizer_bytes"] == lion["per_rank"]["parameters_bytes"] > 0
    assert lion["predicted"]["update_s"] == momentum["predicted"]["update_s"] > 0


def test_a_schedule_is_added_in_one_file(tmp_path: Path) -> None:
    assert len(SCHEDULE) == 1
    stages = "mesh pp = 2\n  stages over pp balanced\n  microbatches 4\n  schedule {}"
    text = DIGITS.replace("train {", f"strategy own {{\n  {stages}\n}}\n\ntrain {{")
    tree, names = patched(tmp_path, SCHEDULE), ("turned", "gpipe")
    for name in names:
        (tree / f"{name}.shard").write_text(f"use std.clusters: h100_pod\n{text}".replace("{}", f'"{name}"'), "utf-8")
    said = shardc(tree, "verify", "turned.shard", "--ranks", "2", "--strategy", "own")
    assert "2 ranks compute what one device does" in said
    new, old = (
        json.loads(shardc(tree, "plan", f"{name}.shard", "--ranks", "2", "--strategy", "own", "--json"))
        for name in names
    )
    assert new["pipeline"]["schedule"] == "turned"
    assert new["per_rank"]["peak_bytes"] == old["per_rank"]["peak_bytes"] > 0
    assert new["predicted"]["step_s"] == pytest.approx(old["predicted"]["step_s"])


def test_an_operator_is_added_in_two_files(tmp_path: Path) -> None:
    assert len(OPERATOR) == 2
    tree, names = patched(tmp_path, OPERATOR), ("softsign", "softplus")
    for name in names:
        text = DIGITS.replace("relu", name)
        (tree / f"{name}.shard").write_text(f"use std.clusters: h100_pod\n{text}", "utf-8")
    said = shardc(tree, "verify", "softsign.shard", "--ranks", "4", "--strategy", "both")
    assert "4 ranks compute what one device does" in said
    new, old = (
        json.loads(shardc(tree, "plan", f"{name}.shard", "--ranks", "4", "--strategy", "both", "--json"))
        for name in names
    )
    assert new["per_rank"] == old["per_rank"] and new["predicted"]["step_s"] == old["predicted"]["step_s"] > 0


def test_an_operator_with_collectives_inside_is_added_in_three_files(tmp_path: Path) -> None:
    """`logsumexp` sums twice as much."""
    assert len(LENGTH) == 3
    tree, said = patched(tmp_path, LENGTH), {}
    for name in ("length", "logsumexp", "none"):
        loss = "cross_entropy(scores, label)"
        more = "" if name == "none" else f" + mean({name}(scores, over = classes))"
        text = DIGITS.replace(f"loss = {loss}", f"loss = {loss}{more}").replace("hidden over mp", "classes over mp")
        (tree / f"{name}.shard").write_text(f"use std.clusters: h100_pod\n{text}", "utf-8")
        given = f"{name}.shard", "--ranks", "4", "--strategy", "both"
        said[name] = json.loads(shardc(tree, "plan", *given, "--json"))
    assert "4 ranks compute what one device does" in shardc(tree, "verify", "length.shard", *given[1:])
    sent = {name: each["per_rank"]["forward_bytes"] for name, each in said.items()}
    assert 0 < 2 * (sent["length"] - sent["none"]) == sent["logsumexp"] - sent["none"]
    seconds = [said[name]["predicted"]["step_s"] for name in ("none", "length", "logsumexp")]
    assert seconds == sorted(seconds) and len({*seconds}) == 3


def test_an_exchange_is_added_in_four_files(tmp_path: Path) -> None:
    assert len(TURN) == 4
    tree, said, losses = patched(tmp_path, TURN), {}, []
    for name, text in (("turned", "turned(h, over = hidden)"), ("none", "h")):
        program = DIGITS.replace("return down(h)", f"return down({text})").replace("epochs = 10", "steps = 3")
        (tree / f"{name}.shard").write_text(f"use std.clusters: h100_pod\n{program}", "utf-8")
        said[name] = json.loads(shardc(tree, "plan", f"{name}.shard", "--ranks", "4", "--strategy", "both", "--json"))
    sent = [said[name]["per_rank"]["forward_bytes"] for name in ("turned", "none")]
    assert sent[0] - sent[1] == 64 // 2 * 4  # a number for each example that a rank has
    assert said["turned"]["predicted"]["step_s"] > said["none"]["predicted"]["step_s"] > 0
    told = shardc(tree, "verify", "turned.shard", "--ranks", "4", "--strategy", "both")
    assert "4 ranks compute what one device does" in told
    for ranks, strategy in (("4", ["--strategy", "both"]), ("1", [])):
        told = shardc(tree, "run", "turned.shard", "--ranks", ranks, *strategy)
        losses.append(told.split("lowest eval.loss")[1].split()[0])
    assert losses[0] == losses[1]


def test_an_element_type_is_added_in_one_file(tmp_path: Path) -> None:
    assert len(ELEMENT_TYPE) == 1
    tree, batch, names = patched(tmp_path, ELEMENT_TYPE), {}, ("i16", "i32")
    for name in names:
        (tree / f"{name}.shard").write_text(WORDS.replace("TYPE", name), "utf-8")
        said = json.loads(shardc(tree, "plan", f"{name}.shard", "--ranks", "4", "--json"))
        batch[name] = next(part["bytes"] for part in said["per_rank"]["peak"]["parts"] if part["what"] == "batch")
        assert said["predicted"]["step_s"] > 0
    assert 0 < 2 * batch["i16"] == batch["i32"]
    said = shardc(tree, "verify", "i16.shard", "--ranks", "4")
    assert "4 ranks compute what one device does" in said
    losses = [shardc(tree, "run", f"{name}.shard", "--ranks", "4").split("lowest loss")[1].split()[0] for name in names]
    assert losses[0] == losses[1]
