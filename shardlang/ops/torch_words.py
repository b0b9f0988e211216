"""A word of torch, or of training on many devices -> how it is written here: two tables, for the
help of diagnostics, for `shardc explain` and for the page `specs/pytorch.md`.

They have no names of operators: an operator has torch's name and meaning."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.frozen.records import dataclass


@dataclass(frozen=True, slots=True)
class Written:
    """`names` are torch's. `torch` is a line of it, and `here` an expression for the same, "" where
    nothing is written. `note` says the rest. where: of a word of training, what `here` is a line
    of; it has no `torch`."""

    names: tuple[str, ...]
    torch: str
    here: str = ""
    note: str = ""
    where: str = ""

    @property
    def help(self) -> str:
        there = f"write `{self.here}` in {self.where}" if self.where else f"`{self.torch}` is `{self.here}` here"
        return ": ".join(part for part in (self.here and there, self.note) if part)


WRITTEN: tuple[Written, ...] = (
    Written(("view", "reshape", "unflatten"), "x.view(batch, -1)", "rearrange(x -> [batch, seq * d])",
            "dims are merged and split by name; to split one, declare it as a product, `dim d = heads * width`"),
    Written(("transpose", "permute", "swapaxes", "movedim"), "x.transpose(1, 2)", "rearrange(x -> [batch, d, seq])",
            "the result lists the dims in their new order"),
    Written(("t", "T", "mT"), "m.T", "rearrange(m -> [columns, rows])",
            "the result lists the dims in their new order"),
    Written(("unsqueeze",), "x.unsqueeze(1)", "rearrange(x -> [batch, 1, seq, d])", "a new dim of size 1 is a `1`"),
    Written(("squeeze",), "one.squeeze(1)", "rearrange(one -> [batch, d])", "a dim of size 1 is left out"),
    Written(("expand_as", "broadcast_to", "repeat", "tile"), "one.expand(-1, seq, -1)",
            "expand(one -> [batch, seq, d])", "most operators broadcast by themselves"),
    Written(("chunk", "split", "tensor_split"), "x.chunk(2, dim=-1)", "x[d = 0..8]",
            "each part is a slice with a name of its own, the next is `x[d = 8..16]`"),
    Written(("unbind", "select", "index_select", "narrow"), "x.unbind(1)[0]", "x[seq = 0]",
            "an index takes one element of a dim, a range, `x[seq = 0..4]`, some, and `take` those of an index tensor"),
    Written(("cat", "concatenate", "hstack", "vstack"), "torch.cat([x, y], dim=1)", "concat(x, y, over = seq)"),
    Written(("mm", "mv", "dot", "linear", "tensordot"), "torch.mm(x, w)", "x @ w",
            "or `einsum(x, w -> [batch, seq, out])`"),
    Written(("bmm", "baddbmm"), "torch.bmm(x, v)", "einsum(x, v -> [batch, seq, out])",
            "dims that the result does not name are summed over"),
    Written(("masked_fill", "masked_fill_"), "x.masked_fill(mask, -1e9)", "where(mask, -1e9, x)"),
    Written(("clamp", "clip", "clamp_min", "clamp_max"), "x.clamp(0.0, 1.0)", "minimum(maximum(x, 0.0), 1.0)"),
    Written(("max",), "x.max(-1).values", "amax(x, over = d)",
            "`argmax` gives the place, `maximum(x, y)` the greater of two values"),
    Written(("min",), "x.min(-1).values", "amin(x, over = d)", "`minimum(x, y)` gives the lesser of two values"),
    Written(("topk", "sort", "argsort"), "x.topk(2).indices", "top_k(x, 2, over = d)",
            "it gives the places, and `gather` the values there"),
    Written(("std",), "x.std(-1)", "sqrt(var(x, over = d))"),
    Written(("norm",), "x.norm(dim=-1)", "sqrt(sum(square(x), over = d))"),
    Written(("normalize",), "F.normalize(x, dim=-1)",
            "x / rearrange(sqrt(sum(square(x), over = d)) -> [batch, seq, 1])"),
    Written(("reciprocal",), "x.reciprocal()", "1.0 / x"),
    Written(("sign",), "x.sign()", "where(x > 0.0, 1.0, where(x < 0.0, -1.0, 0.0))"),
    Written(("leaky_relu",), "F.leaky_relu(x)", "where(x > 0.0, x, 0.01 * x)"),
    Written(("tril", "triu"), "m.tril()", "where(rearrange(arange(rows) -> [rows, 1]) >= arange(columns), m, 0.0)",
            "`attention(q, k, v, causal = true)` has the causal mask"),
    Written(("zeros_like", "ones_like", "full_like"), "torch.zeros_like(x)", "0.0 * x",
            "a number broadcasts, so `x + 1.0` needs no tensor of ones"),
    Written(("float", "half", "bfloat16", "double", "long", "int", "type_as"), "x.float()", "cast(x, f32)",
            "the types are f64, f32, f16, bf16, i64, i32 and bool"),
    Written(("to", "cuda", "cpu", "device"), "x.to(torch.bfloat16)", "cast(x, bf16)",
            "that changes the type; where a tensor lies is said by the strategy and by `--device`"),
    Written(("contiguous", "clone"), "x.contiguous()", note="leave it out: values have no strides and never change"),
    Written(("size", "shape"), "x.shape[1]", note="write the name of the dim: `seq` is its size"),
    Written(("item", "numpy", "tolist"), "loss.item()",
            note="write `metric name = ...` in `train`: each line of a step shows it"),
    Written(("grad", "backward", "zero_grad", "requires_grad"), "loss.backward()",
            note="leave it out: `train` takes the gradients of its `loss`; `freeze at encoder` has none, and no "
            "gradient passes `detach(x)`"),
    Written(("no_grad",), "with torch.no_grad():", "detach(x)"),
    Written(("checkpoint",), "checkpoint(block, x)", note="write `at blocks[*]: recompute` in the strategy"),
    Written(("dim", "axis"), "x.mean(dim=1)", "mean(x, over = seq)", "dims go by their names"),
    Written(("keepdim",), "x.sum(-1, keepdim=True)", "rearrange(sum(x, over = d) -> [batch, seq, 1])"),
    Written(("torch", "F", "nn"), "torch.relu(x)", "relu(x)", "operators go by their names alone"),
)  # fmt: skip
BY_NAME: Mapping[str, Written] = {name: written for written in WRITTEN for name in written.names}
STRATEGY, TRAIN = "the strategy", "`train`"


def _rule(names: str, here: str, note: str = "") -> Written:
    return Written(tuple(names.split()), "", here, note, STRATEGY)


def _setting(names: str, here: str, note: str = "") -> Written:
    return Written(tuple(names.split()), "", here, note, TRAIN)


TRAINING: tuple[Written, ...] = (
    _rule("gradient_accumulation gradient_accumulation_steps accumulate_grad_batches accumulate accumulation "
          "accumulation_steps grad_accum", "microbatches 4", "`batch` has the examples of all four"),
    _rule("data_parallel data_parallelism ddp distributed_data_parallel", "split batch over dp"),
    _rule("fsdp fsdp2 fully_sharded_data_parallel fully_shard zero3 zero_3", "zero 3 over dp",
          "beside `split batch over dp`"),
    _rule("zero1 zero_1 zero2 zero_2 distributed_optimizer", "zero 1 over dp",
          "1 cuts the optimizer's state, 2 the gradients too"),
    _rule("tensor_parallel tensor_parallelism tp", "split heads, ffn over mp"),
    _rule("sequence_parallel sequence_parallelism context_parallel context_parallelism cp", "split seq over mp"),
    _rule("expert_parallel expert_parallelism ep", "split experts over mp"),
    _rule("pipeline pipeline_parallel pipeline_parallelism stage", "stages over pp balanced",
          "`microbatches` keeps all stages busy"),
    _rule("1f1b gpipe interleaved_1f1b zero_bubble zbv dualpipe_v", 'schedule "1f1b"', "or the name of another one"),
    _rule("activation_checkpointing gradient_checkpointing remat", "at blocks[*]: recompute"),
    _rule("offload cpu_offload activation_offload", "at blocks[*]: place saved on host"),
    _setting("patience early_stopping early earlystopping", "evaluate = every(200, best = lowest(loss), patience = 5)"),
    _setting("warmup warmup_steps num_warmup_steps warmup_ratio scheduler lr_scheduler cosine",
             "lr_schedule = warmup_cosine(warmup = 2000)", "`warmup` is a number of steps"),
    _setting("learning_rate lr betas weight_decay momentum", "optimizer = adamw(lr = 3e-4, weight_decay = 0.1)"),
    _setting("num_epochs max_epochs num_train_epochs", "epochs = 10"),
    _setting("max_steps num_steps train_steps iterations max_iters", "steps = 2000"),
    _setting("grad_clip gradient_clip gradient_clipping gradient_clip_val clip_grad_norm max_grad_norm", "clip = 1.0"),
    _setting("bf16 fp16 f16 tf32 dtype amp autocast mixed_precision", "precision = bf16", "or `f16`, `tf32`, `f64`"),
    _setting("resume save_every save_steps checkpointing checkpoint_every keep", "checkpoint = every(100, keep = 3)",
             "`shardc run --resume` goes on from the newest"),
    _setting("torch_compile", "compile = blocks"),
    _setting("batch_size micro_batch_size", 'data = digits(split = "train", batch = batch)',
             "it is the whole batch of all ranks, mostly a dim: `dim batch = 64`"),
    _setting("val validation test val_data eval_data", 'eval = digits(split = "test", batch = batch)'),
    _setting("criterion loss_fn objective", "loss = cross_entropy(model(image), label)"),
    Written(("layout", "layouts", "placement", "device_mesh"), "",
            note="a layout says which part of a value each rank has, as in `f32[batch@dp, hidden@mp]`; `shardc plan` "
            "shows it"),
    Written(("axis_name", "world_size"), "", note="the axes of a `mesh` are the ranks: `mesh dp = auto, mp = 2`"),
    Written(("mfu", "hfu", "utilization"), "",
            note="`shardc plan` predicts it where the file has the speeds of a `device` (`predicted.md`)"),
    Written(("buffer", "register_buffer"), "", note="write `state mean: [d] = zeros()` in the model"),
    Written(("causal", "is_causal", "attn_mask", "causal_mask"), "", note="write `attention(q, k, v, causal = true)`"),
    Written(("kv_heads", "num_key_value_heads", "gqa", "mqa", "grouped_query_attention"), "",
            note="keys and values of `attention` may have fewer heads, which divide those of the queries; "
            "`shardc explain std.llama` has a model with them"),
)  # fmt: skip
OF_TRAINING: Mapping[str, Written] = {name: written for written in TRAINING for name in written.names}


def torch_help(name: str) -> str:
    """How what torch calls `name` is written here; "" where the table has nothing of it."""
    return BY_NAME[name].help if name in BY_NAME else ""


def training_help(name: str) -> str:
    """How what training on many devices calls `name` is written here; "" as above. Capitals, blanks
    and hyphens are those of prose."""
    plain = name.lower().replace(" ", "_").replace("-", "_")
    return OF_TRAINING[plain].help if plain in OF_TRAINING else ""
