"""The words of the grammar -> a line that each stands in, and what it means there, for `shardc
explain` and the reference.

A test holds the table to the grammar. The settings of `train` and of hardware, which are names to
the grammar, have such texts where they are checked (check/train)."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.frozen.records import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """`form`: a line (or a block in one line) that may stand as it is where the word belongs."""

    form: str
    doc: str


_BIAS, _CHOICE = (
    "if bias {\n  param b: [d] = zeros()\n} else {\n  dim n = 2\n}",
    "dim n = 4 if wide and not flat else 2",
)
_TRUTH, _AUTO = "layer up = Linear(d, d, bias = true)", "split auto over mp"
_STATES, _SAVED = "stages over pp balanced, virtual = 2", "at blocks[*]: place saved on host"
# What a file has.
ITEMS: Mapping[str, Word] = {
    "use": Word("use std.nn: Linear", 'Imports names of a library, or of another file: `use "./layers.shard": Block`.'),
    "dim": Word("dim batch = 32, ffn = 4 * batch", "Declares named sizes, in a file or in a model. Each is a dim of "
                "its own: two dims of one size are still different. `shardc run --set batch=64` changes one."),
    "model": Word("model Net(d: dim) {\n  forward(x: [batch, d]) -> [batch, d] {\n    return relu(x)\n  }\n}",
                  "Declares layers, parameters and a `forward` that says what is computed. It is used as a layer of "
                  "another model (`layer`), or as the model of `train`."),
    "fn": Word("fn twice(x: [...]) -> [...] {\n  return 2 * x\n}", "A model without members: a function of values."),
    "strategy": Word("strategy ddp {\n  mesh dp = auto\n  split batch over dp\n}", "Says where a model is computed: "
                     "how its dims are split over the ranks. It never changes a result. A file may have several; "
                     "`--strategy NAME` picks one, and the first is the default."),
    "train": Word("train {\n  model = Net()\n}", "Says what is trained, on which data, and for how long: one setting a "
                  "line. Names that are no settings are values, which the lines after them may use."),
    "device": Word("device card {\n  memory = 80GB\n}", "Describes a device for `plan` and `tune`: its memory and "
                   "speeds. `std.clusters` has devices from data sheets, and `shardc calibrate` measures this "
                   "machine."),
    "cluster": Word("cluster pod {\n  device = card\n  devices = 8\n}", "Describes nodes of one kind of device, and "
                    "the network between them. `--cluster NAME` picks one; the first that a file declares is the "
                    "default."),
    "level": Word("cluster pod {\n  level hall {\n    ranks = 24576\n  }\n}",
                  "A block of whole nodes in a cluster; between blocks the network may be slower."),
    "operator": Word('operator twice(x: [n]) -> [n] {\n  linear x\n  flops n\n  python "ops.py": twice\n}',
                     "Declares an operator of your own, a function in Python. `shardc verify` tries it under every "
                     "split."),
    "source": Word('source mine(path: str) -> (x: [batch, d]) {\n  python "data.py": mine\n}',
                   "Declares a data source of your own, in Python."),
    "optimizer": Word('optimizer mine(lr: float) {\n  python "mine.py": mine\n}', "Declares an optimizer of your own, "
                      "in Python. The setting `optimizer` of `train` says which one trains."),
}  # fmt: skip
MEMBERS: Mapping[str, Word] = {
    "layer": Word("layer blocks[4] = Block(d)", "A model within a model; with `[4]` an array of four, which `x |> "
                  "blocks` applies in turn. Its values and parameters go by its path: `blocks[0].weight`. "
                  "`blocks[*].weight` is that of every layer, along a dim `blocks` before its own: "
                  "`sum(blocks[*].extra)` adds up a number that each layer has."),
    "param": Word("param gate: [heads] = ones()", "A tensor that is trained, with its type and its initial value."),
    "state": Word("state mean: [d] = zeros()", "A tensor that is saved and not trained; an operator such as "
                  "`batch_norm` may write it. In an `optimizer` of your own, `state momentum like parameter` is what "
                  "it keeps of each parameter."),
    "forward": Word("forward(x: [batch, d]) -> [batch, d] {\n  return relu(x)\n}",
                    "What a model computes: a list of `name = expression`, and a `return`."),
    "return": Word("forward(x: [n]) -> [n] {\n  return relu(x)\n}",
                   "Gives the result of a `forward` or a function: one value, or several with commas between."),
    "if": Word(_BIAS, "Around members: they are there where the condition holds. It is known before the run. In an "
               "expression it is `a if condition else b`."),
    "else": Word(_BIAS, "What there is where the condition of `if` does not hold."),
    "and": Word(_CHOICE, "Both hold. Of tensors of bool it is `logical_and`, element by element."),
    "or": Word("dim n = 4 if wide or flat else 2", "Either holds. Of tensors of bool it is `logical_or`."),
    "not": Word(_CHOICE, "The condition does not hold. Of a tensor of bool it is `logical_not`."),
    "true": Word(_TRUTH, "A setting that is on."),
    "false": Word("layer up = Linear(d, d, bias = false)", "A setting that is off."),
}  # fmt: skip
RULES: Mapping[str, Word] = {
    "mesh": Word("mesh pp = 2, dp = auto, mp = 2", "Names the axes of the ranks, outermost first. Their product is the "
                 "number of ranks; `auto` takes what the others leave. `--set NAME.mp=4` changes an axis."),
    "auto": Word(_AUTO, "Leaves open what a rule says, for `shardc tune` to fill in. One axis of a `mesh` may be "
                 "`auto` in any run: it takes the ranks that are left."),
    "split": Word("split heads, ffn, vocab over mp", "Splits dims over axes of the mesh, in every value, parameter and "
                  "field that has them. A dim must divide by its axes, unless `uneven` or `sizes` follows. In the "
                  "group `(dp, cp)` the first cuts first; an axis with a `?` gives way to other dims."),
    "over": Word("split batch over (dp, cp)", "Names the axes of the mesh that a rule uses."),
    "uneven": Word("split vocab over mp uneven",
                   "Lets `split` cut a dim that does not divide, into parts of torch.chunk's sizes."),
    "sizes": Word("split vocab over mp sizes (4, 20, 8)", "Lists the sizes of the parts, in the order of the ranks."),
    "shard": Word("at h: shard ((2, 4), (4, 1))", "The positional form, for a statement of one operator: for each "
                  "input the number of parts of each dim. `-> ((8, 1))` sets the layout of the result."),
    "stages": Word("stages over pp {\n  0: encoder\n  1: decoder, head\n}", "Cuts the model into pipeline stages along "
                   "an axis: a line for each stage, or `balanced`. It needs `microbatches` to keep all ranks busy."),
    "balanced": Word(_STATES, "Cuts the layers into contiguous stages of nearly equal cost."),
    "virtual": Word(_STATES, "Gives each rank of the axis several stages, for the schedules that use them."),
    "microbatches": Word("microbatches 2 * pp", "Cuts each rank's part of the batch in so many parts, which are "
                         "computed one after the other. With stages they fill the pipeline; without, this is gradient "
                         "accumulation. It changes no result. The default is 1."),
    "schedule": Word('schedule "1f1b"', 'The order of microbatches in the stages: "gpipe", "1f1b", "interleaved_1f1b", '
                     '"zero_bubble", "zbv", "dualpipe_v", or a file of actions. The default is 1f1b, or '
                     "interleaved_1f1b with `virtual`. (The setting of the learning rate is `lr_schedule`.)"),
    "zero": Word("zero 3 over dp", "Cuts what is kept of each parameter over axes that do not cut it already: 1 the "
                 "optimizer's state, 2 the gradients too, 3 the parameters too, as FSDP does. With `, keep` level 3 "
                 "gathers once a step: it sends less and takes more memory. The default is 0."),
    "bucket": Word("bucket gradients 25MB",
                   "Sets the size of the buckets in which gradients are summed over ranks. The default is 25MB."),
    "gradients": Word("bucket gradients 25MB", "What is put in buckets."),
    "recompute": Word("at blocks[*]: recompute", "Keeps less of a layer for backward, which computes it again: it "
                      "takes time for memory, as torch's activation checkpointing does. `recompute all but products` "
                      "keeps the results of products too, and `recompute gathers` all but what was gathered."),
    "attend": Word("attend evenly", "How attention over a sequence that is split is computed: `evenly` gives causal "
                   "ranks equal work, and `in a ring` sends keys and values from rank to rank. Without it keys and "
                   "values are gathered."),
    "chunks": Word("at train.loss: chunks 8", "Computes a `cross_entropy` and the product that makes its scores in so "
                   "many chunks of rows, so that not all scores are there at once. The default is 1."),
    "place": Word("at table: place on host", "Keeps what the selector covers in the host's memory, or with `on device` "
                  "on the device. `place saved on host` sends there what layers keep for backward."),
    "saved": Word(_SAVED, "What the forward of a layer keeps for its backward."),
    "on": Word("at table: place on host", "Says in which memory: `on host` or `on device`."),
    "strict": Word("strict", "Makes every conversion between layouts an error that no rule asks for."),
    "at": Word("at blocks[0..4].*: recompute", "Limits a rule to what a selector covers: paths from the model of "
               "`train`, with `*` for a name, `**` for any depth, `[*]`, `[3]` and `[0..4]` for indexes. `{ .. }` "
               "holds several rules. The most specific rule wins. In `train`, `optimizer at` and `freeze at` use the "
               "same."),
}  # fmt: skip
# What is said of a function in Python that a file declares.
CLAUSES: Mapping[str, Word] = {
    "whole": Word("whole time, taps", "Of an `operator`: dims that may not be split; all others may be."),
    "inside": Word("inside d", "Of an `operator`: dims over which the function itself sums, with the group of ranks "
                   "that it is given."),
    "reduces": Word("reduces 2, 1",
                    "Of an `operator`: how many sums it makes over the `inside` dims, forward and backward."),
    "linear": Word("linear x",
                   "Of an `operator`: an operand that may be a pending sum; `linear (x, y)` says it of both together."),
    "flops": Word("flops 2 * batch * d", "Of an `operator`: its cost, for `plan` and `tune`."),
    "keeps": Word("keeps x, w",
                  "Of an `operator`: what backward reads, for the memory in the plan. `result` is its result."),
    "python": Word('python "my_ops.py": causal_conv',
                   "The file, beside the declaration or below it, and the function."),
    "needs": Word("needs whole matrices", "Of an `optimizer`: what the function is given of a parameter: `elements`, "
                  "`rows` or `whole matrices`."),
    "like": Word("state momentum like parameter",
                 "Of an `optimizer`: something of each parameter's shape that it keeps between steps."),
}  # fmt: skip
