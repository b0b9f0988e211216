"""Faults of the runtime's tensor functions: statistics over split dims, lookups, dropout."""

from __future__ import annotations

from tests.mutants.fault import Fault

RULES = ("ops/test_factor_rules.py",)
EXCHANGES = ("runtime/test_row_exchange.py",)
ROWS = "runtime/comm/row_exchange.py"
ATTENTION = ("runtime/test_attention.py",)
PARTS, ACROSS = "runtime/functions/attention.py", "runtime/functions/context.py"
STATES = ("ops/test_random_and_states.py",)
LOSSES, NORMS, LOOKUPS, STATISTICS = (
    f"runtime/functions/{n}.py" for n in ("losses", "normalisations", "lookups", "statistics")
)

FAULTS = (
    Fault("smoothing by the local classes", "label smoothing over split classes", LOSSES,
          "smoothing / self.number * level[0]", "smoothing / scores.shape[dim] * level[0]", RULES),
    Fault("each rank shifts by its own maximum", "cross_entropy over split classes", LOSSES,
          "scores - greatest(extreme(scores, (dim,)), self.group)", "scores - extreme(scores, (dim,))", RULES),
    Fault("a label counts where it is not", "gradient of cross_entropy over split classes", LOSSES,
          "((self.smoothing - 1.0) * gradient).where(here, 0.0)",
          "((self.smoothing - 1.0) * gradient).expand_as(place)",
          RULES),
    Fault("ignored labels have a gradient", "masked losses over split classes", LOSSES,
          "gradient = gradient.where(kept[0], 0.0)", "gradient = gradient.clone()", RULES),
    Fault("softmax's gradient is normalised locally", "backward of softmax over a split dim", NORMS,
          "summed(weighted.sum(ctx.dim, keepdim=True), ctx.group)", "weighted.sum(ctx.dim, keepdim=True)", RULES),
    Fault("mean of a local shard", "layer_norm over a split dim", NORMS,
          "mean = summed(x.sum(dims, keepdim=True), group) / size if centred else None",
          "mean = x.mean(dims, keepdim=True) if centred else None", RULES),
    Fault("a norm's gradient takes local statistics", "backward of layer_norm over a split dim", NORMS,
          "(summed(both, ctx.group) / ctx.size)", "(both / ctx.size)", RULES),
    Fault("the running variance is biased", "states of batch_norm", NORMS,
          "* (size / max(size - 1, 1))", "* 1", STATES),
    Fault("rows from elsewhere are not zero", "embedding of a split table", LOOKUPS,
          "F.embedding(local, table).where(here.unsqueeze(-1), 0.0)", "F.embedding(local, table)", RULES),
    Fault("one_hot counts from 0 on every rank", "one_hot over split classes", LOOKUPS,
          "random.places(start, size, ids.device)", "random.places(0, size, ids.device)", RULES),
    Fault("dropout does not scale", "the mean of what is kept", LOOKUPS,
          "1.0 / (1.0 - p)", "1.0", STATES),
    Fault("dropout keeps the last word that is too small", "masks, by one word of 2^24", "runtime/random.py",
          "(least << 40) - 1 + _SIGN", "(least << 40) - (1 << 40) - 1 + _SIGN", ("runtime/test_random.py",)),
    Fault("dropout is compared in float64", "masks where float32 rounds p", "runtime/random.py",
          'struct.unpack("f", struct.pack("f", p))[0]', "p", ("runtime/test_random.py",)),
    Fault("words are compared with signs", "masks: half of the words", "runtime/random.py",
          "return x.bitwise_xor_(_SIGN) > (least << 40) - 1 + _SIGN",
          "return x > min((least << 40) - 1, -1 - _SIGN)", ("runtime/test_random.py",)),
    Fault("dropout2d drops by local channel", "masks of images that are cut", LOOKUPS,
          "(offsets or [0] * x.dim())[:2])", "[0, 0])", STATES),
    Fault("rows are looked up from the table's first", "rows that a rank is asked for", ROWS,
          "asked.ids - starts[group.index]", "asked.ids - starts[0]", EXCHANGES),
    Fault("rows stay in torch's order", "exchanges over axes that are not in rank order", ROWS,
          "return rows if asked.order is None else torch.empty_like(rows).index_copy_(0, asked.order, rows)",
          "return rows", EXCHANGES),
    Fault("gradients of rows are sent in order of ids", "the backward of such exchanges", ROWS,
          "sent = gradient if asked.order is None else gradient[asked.order]", "sent = gradient", EXCHANGES),
    Fault("an exchange forgets sizes by hand", "tables cut in other sizes than torch.chunk's", ROWS,
          "parts = chunk_sizes(rows, group.size) if sizes is None else sizes", "parts = chunk_sizes(rows, group.size)",
          EXCHANGES),
    Fault("parts weigh as the greatest of them", "attention that is put together of parts", PARTS,
          "torch.logaddexp(self.found[1], part[1])", "torch.maximum(self.found[1], part[1])", ATTENTION),
    Fault("what sees no key has a gradient", "attention whose keys are all left out", PARTS,
          "sums.masked_fill_(blind, torch.inf)", "sums", ATTENTION),
    Fault("chunks swapped", "queries of causal attention on several ranks", ACROSS,
          "(x, 2, self.group, self.even, self.given)", "(x, 2, self.group, self.given, self.even)", ATTENTION),
    Fault("hidden blocks are computed and seen ones are not", "causal attention in a ring", ACROSS,
          "if owner < here else", "if owner > here else", ATTENTION),
    Fault("gradients of keys are left behind", "backward of attention in a ring", ACROSS,
          "both if coming is None else both + coming.wait()", "both", ATTENTION),
    Fault("each chunk's gradient is the first's", "a loss in chunks", "runtime/functions/losses.py",
          "first += len(rows)", "first += 0", ("runtime/test_chunks.py",)),
    Fault("chunks of a weight's gradient are added up in bf16", "a loss in chunks", "runtime/functions/losses.py",
          "torch.zeros_like(x, dtype=wide) if t", "torch.zeros_like(x) if t", ("runtime/test_chunks.py",)),
    Fault("columns are read as rows", "attention of what is transposed", "runtime/functions/attention_kernels.py",
          "x if x.stride(-1) == 1 else x.contiguous() for x in xs", "x for x in xs", ("runtime/test_attention.py",)),
    Fault("a ring knows what one rank keeps", "attention in a ring with keys left out", ACROSS,
          "[chunks[at] for at in self.even[owner]]", "[chunks[at] for at in self.even[self.group.index]]", ATTENTION),
    Fault("a part is waited for before the one before is computed", "what is sent beside work", ACROSS,
          "coming = self._pass(both) if step + 1 < size else None",
          "coming = Ready(self._pass(both).wait()) if step + 1 < size else None", ATTENTION),
    Fault("ties are counted locally", "gradient of amax over a split dim", STATISTICS,
          "summed(ties.sum(dims, keepdim=True).to(x.dtype), group)", "ties.sum(dims, keepdim=True).to(x.dtype)", RULES),
    Fault("argmax counts from 0 on every rank", "argmax over a split dim", STATISTICS,
          "random.places(start, x.shape[dim], x.device)",
          "torch.arange(0, x.shape[dim], device=x.device)", RULES),
)  # fmt: skip
