"""Declarations of operators, with the Python that computes each: right ones, and wrong ones with what refuses them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.ops.declared import Declaration
from shardlang.sources.source import Source

HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"


@dataclass(frozen=True)
class Example:
    """signature: from the name on; clauses: without `flops` and `python`; says: what a refusal must hold."""

    signature: str
    clauses: str
    python: str
    says: str = ""
    free: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.signature.partition("(")[0]

    def declaration(self, folder: Path) -> Declaration:
        """The declaration, in files of a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "own.py").write_text(HEAD + self.python)
        clauses = [*self.clauses.splitlines(), "flops 0", f'python "own.py": {self.name}']
        lines = "\n".join(f"  {line}" for line in clauses)
        file = folder / "own.shard"
        file.write_text(f"operator {self.signature} {{\n{lines}\n}}\n")
        sink = Sink()
        (found,) = driver.declared_operators(Source(str(file), file.read_text()), sink) or (None,)
        assert found is not None, [d.message for d in sink.found]
        return found.declaration


ROWS = "(x: [batch, d]) -> [batch, d]"
_SUMS = "(x: [batch, d]) -> [batch]"
RIGHT = [
    Example(
        "causal_conv(x: [batch, channels, time], w: [channels, taps], stride: int = 1) -> [batch, channels, after]",
        "dim after = (time + stride - 1) // stride\nwhole time, taps, after\nlinear x\nlinear w\nkeeps x, w",
        "def causal_conv(x, w, stride):\n"
        "    x = F.pad(x, (w.shape[1] - 1, 0))\n"
        "    return F.conv1d(x, w[:, None], stride=stride, groups=w.shape[0])\n",
    ),
    Example("swish" + ROWS, "keeps x", "def swish(x):\n    return x * torch.sigmoid(x)\n"),
    Example(
        "bilinear(x: [..., a], w: [a, b, c], y: [..., b]) -> [..., c]",
        "linear x\nlinear w\nlinear y",
        "def bilinear(x, w, y):\n    return torch.einsum('...a,abc,...b->...c', x, w, y)\n",
    ),
    Example(
        "row_norm" + ROWS,
        "whole d\nkeeps x, result",
        "def row_norm(x):\n    return x / (x.square().sum(1, keepdim=True) + 1e-6).sqrt()\n",
    ),
    Example(
        "heads_mixed(x: [batch, heads * width], w: [heads, other]) -> [batch, other * width]",
        "linear x\nlinear w",
        "def heads_mixed(x, w):\n"
        "    apart = x.reshape(x.shape[0], w.shape[0], -1)\n"
        "    return torch.einsum('bhw,ho->bow', apart, w).flatten(1)\n",
    ),
    Example(
        "looked_up(ids: i64[batch], table: [rows, d]) -> [batch, d]",
        "whole rows\nlinear table\nkeeps ids",
        "def looked_up(ids, table):\n    return table[ids]\n",
    ),
    Example(
        "halved(x: [..., d], p: float = 0.5) -> [..., half]",
        "dim half = d / 2\nwhole d, half\nlinear x\nkeeps x",
        "def halved(x, p):\n    return x.unflatten(-1, (-1, 2)).mean(-1) * p\n",
    ),
    Example("logs(x: [batch, d]) -> [batch, d]", "whole d\nkeeps x", "def logs(x):\n    return x.log()\n", free=("d",)),
    Example(
        "centred" + ROWS,
        "inside d\nreduces 1, 1",
        "def centred(x, group):\n    return x - group.sum(x, 1) / group.size('d')\n",
    ),
    Example(
        "length(x: [batch, d], scale: [batch]) -> [batch]",
        "inside d\nreduces 1, 1\nlinear scale",
        "def length(x, scale, group):\n    return group.sum(x.square(), 1).sqrt().squeeze(1) * scale\n",
    ),
    Example(
        "shares" + ROWS,
        "inside d\nreduces 2, 1\nkeeps result",
        "def shares(x, group):\n    e = (x - group.max(x, 1)).exp()\n    return e / group.sum(e, 1)\n",
    ),
    Example(
        "level(x: [batch, a, c], w: [c]) -> [batch, a, c]",
        "inside a, c\nreduces 1, 1",
        "def level(x, w, group):\n    return x * w - group.sum(x * w, (1, 2)) / group.size('a')\n",
    ),
]

WRONG = [
    Example(
        "as_it_is" + ROWS, "linear x", "def as_it_is(x):\n    return x\n", "it shares the memory of its operand `x`"
    ),
    Example(
        "viewed" + ROWS,
        "linear x",
        "def viewed(x):\n    return x.view_as(x)\n",
        "it shares the memory of its operand `x`",
    ),
    Example(
        "keeps_less(x: [batch, d], w: [d]) -> [batch, d]",
        "keeps w",
        "def keeps_less(x, w):\n    return x.sin() * w\n",
        "its backward reads `x`, which `keeps` leaves out",
    ),
    Example(
        "keeps_another" + ROWS,
        "keeps x",
        "def keeps_another(x):\n    return x.tanh()\n",
        "its backward reads its result, which `keeps` leaves out",
    ),
    Example(
        "of_this_rank" + ROWS,
        "",
        "import os\n\n\ndef of_this_rank(x):\n    return x * (1 + int(os.environ.get('RANK', '0')))\n",
        "it gives other results where RANK and LOCAL_RANK and WORLD_SIZE in the environment are others",
    ),
    Example(
        "own_sums" + ROWS,
        "inside d\nreduces 1, 1",
        "def own_sums(x, group):\n    return x - x.sum(1, keepdim=True)\n",
        "`d` split over 2 ranks the results",
    ),
    Example(
        "own_size" + ROWS,
        "inside d\nreduces 1, 1",
        "def own_size(x, group):\n    return x - group.sum(x, 1) / x.shape[1]\n",
        "`d` split over 2 ranks the results",
    ),
    Example(
        "of_the_greatest" + ROWS,
        "inside d\nreduces 1, 0",
        "def of_the_greatest(x, group):\n    return x / (1 + group.max(x.abs(), 1))\n",
        "its backward is not the derivative of its forward",
    ),
    Example(
        "too_many" + ROWS,
        "inside d\nreduces 2, 1",
        "def too_many(x, group):\n    return x - group.sum(x, 1)\n",
        "numbers forward and",
    ),
    Example(
        "too_large" + ROWS,
        "inside d\nreduces 1, 1",
        "def too_large(x, group):\n    return x - group.sum(torch.stack((x, x * x)), 2)[0]\n",
        "the size of `x` without `d`",
    ),
    Example(
        "only_here" + _SUMS,
        "inside d\nreduces 0, 0",
        "def only_here(x, group):\n    return x.sum(1)\n",
        "`d` split over 2 ranks the ranks that share",
    ),
    Example(
        "nonlinear" + ROWS,
        "linear x",
        "def nonlinear(x):\n    return x.tanh()\n",
        "`x` pending over 2 ranks the results differ",
    ),
    Example(
        "affine" + ROWS,
        "linear x",
        "def affine(x):\n    return 2 * x + 1\n",
        "`x` pending over 2 ranks the results differ",
    ),
    Example(
        "both_linear(x: [batch, d], y: [batch, d]) -> [batch, d]",
        "linear (x, y)",
        "def both_linear(x, y):\n    return x * y\n",
        "`x` and `y` pending over 2 ranks the results differ",
    ),
    Example(
        "sum_of_two(x: [batch, d], y: [batch, d]) -> [batch, d]",
        "linear x",
        "def sum_of_two(x, y):\n    return x + y\n",
        "`x` pending over 2 ranks the results differ",
    ),
    Example(
        "conv(x: [batch, time], w: [taps]) -> [batch, time]",
        "whole taps",
        "def conv(x, w):\n    return F.conv1d(F.pad(x[:, None], (len(w) - 1, 0)), w[None, None])[:, 0]\n",
        "`time` split over 2 ranks the results differ",
    ),
    Example("running" + ROWS, "", "def running(x):\n    return x.cumsum(1)\n", "`d` split over 2 ranks the results"),
    Example(
        "mean_for_sum" + _SUMS,
        "",
        "def mean_for_sum(x):\n    return x.mean(1)\n",
        "`d` split over 2 ranks the results differ",
    ),
    Example("most" + _SUMS, "", "def most(x):\n    return x.amax(1)\n", "`d` split over 2 ranks the results differ"),
    Example("soft" + ROWS, "", "def soft(x):\n    return x.softmax(1)\n", "`d` split over 2 ranks the results differ"),
    Example(
        "of_batch" + ROWS,
        "whole d",
        "def of_batch(x):\n    return x - x.mean(0)\n",
        "`batch` split over 2 ranks the results differ",
    ),
    Example(
        "sum_and_one" + _SUMS,
        "",
        "def sum_and_one(x):\n    return x.sum(1) + 1\n",
        "`d` split over 2 ranks the results differ",
    ),
    Example(
        "counted" + ROWS,
        "",
        "def counted(x):\n    return x / x.shape[0]\n",
        "`batch` split over 2 ranks the results differ",
    ),
    Example("turned" + ROWS, "", "def turned(x):\n    return x.flip(1)\n", "`d` split over 2 ranks the results differ"),
    Example(
        "table(ids: i64[batch], rows: [n, d]) -> [batch, d]",
        "",
        "def table(ids, rows):\n    return rows[ids]\n",
        "`n` split over",
    ),
    Example(
        "backward" + ROWS,
        "",
        "class Double(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return 2 * x\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return 3 * g\n\n\n"
        "def backward(x):\n    return Double.apply(x)\n",
        "its backward is not the derivative of its forward",
    ),
    Example(
        "split_backward" + ROWS,
        "",
        "class Mean(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return x.clone()\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g - g.mean() + g.mean(1, keepdim=True)\n\n\n"
        "def split_backward(x):\n    return Mean.apply(x)\n",
        "its backward is not the derivative",
    ),
    Example(
        "noise" + ROWS,
        "",
        "def noise(x):\n    return x + torch.randn_like(x)\n",
        "two calls with equal operands give different results",
    ),
    Example(
        "seeded" + ROWS,
        "",
        "def seeded(x):\n    draws = torch.Generator().manual_seed(0)\n"
        "    return x * torch.rand(x.shape, generator=draws, dtype=x.dtype)\n",
        "split over 2 ranks the results differ",
    ),
    Example(
        "in_place" + ROWS,
        "",
        "def in_place(x):\n    with torch.no_grad():\n        x += 1\n    return x * 2\n",
        "it changes its operand `x`",
    ),
    Example(
        "shape(x: [batch, d]) -> [batch]",
        "",
        "def shape(x):\n    return x.sum(1, keepdim=True)\n",
        "its result has shape [4, 1], and [4] is declared",
    ),
    Example(
        "rounded(x: [batch, time], stride: int = 1) -> [batch, after]",
        "dim after = time // stride\nwhole time, after\nlinear x",
        "def rounded(x, stride):\n    return x[:, ::stride]\n",
        "its result has shape [",
    ),
    Example(
        "kind(x: [batch, d]) -> [batch, d]",
        "",
        "def kind(x):\n    return x.double() * 2\n",
        "its result is f64 where f32 is declared",
    ),
    Example(
        "index(x: [batch, d]) -> i64[batch]",
        "whole d",
        "def index(x):\n    return x.argmax(1).int()\n",
        "its result is i32 where i64 is declared",
    ),
    Example("stopped" + ROWS, "", "def stopped(x):\n    return x.detach() * 2\n", "its result has no gradient"),
    Example(
        "half_stopped(x: [batch, d], w: [d]) -> [batch, d]",
        "",
        "def half_stopped(x, w):\n    return x * w.detach()\n",
        "its backward is not the derivative",
    ),
    Example(
        "minor(x: [batch, heads * width], w: [heads]) -> [batch, heads * width]",
        "",
        "def minor(x, w):\n    return (x.unflatten(1, (len(w), -1)).roll(1, 2) * w[:, None]).flatten(1)\n",
        "`heads` split over 3 ranks, `width` split over 2 ranks the results differ",
    ),
    Example(
        "product(x: [batch, heads * width], w: [heads]) -> [batch, heads * width]",
        "",
        "def product(x, w):\n    return x * w.repeat(x.shape[1] // len(w))\n",
        "`heads` split over 2 ranks the results differ",
    ),
    Example(
        "leading(x: [..., d]) -> [..., d]",
        "whole d",
        "def leading(x):\n    return x / x.numel()\n",
        "a dim of `...` split over 2 ranks the results differ",
    ),
    Example(
        "setting(x: [batch, d], k: int = 0) -> [batch, d]",
        "",
        "def setting(x, k):\n    return x.roll(k, 1)\n",
        "`d` split over 2 ranks the results differ",
    ),
    Example(
        "fails" + ROWS,
        "",
        "def fails(x):\n    raise ValueError('no such thing')\n",
        "the function fails on whole operands: ValueError: no such thing",
    ),
    Example("no_tensor" + ROWS, "", "def no_tensor(x):\n    return x.tolist()\n", "`no_tensor` gave list"),
    Example(
        "turned_single" + ROWS,
        "",
        "def turned_single(x):\n    return x.flip(1) * 2 if x.dtype == torch.float32 else x * 2\n",
        "in f32 its results differ by",
    ),
    Example(
        "single_backward" + ROWS,
        "",
        "class Double(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return 2 * x\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * (3 if g.dtype == torch.float32 else 2)\n\n\n"
        "def single_backward(x):\n    return Double.apply(x)\n",
        "in f32 the gradients of `x` differ by 1",
    ),
    Example(
        "evaluated" + ROWS,
        "",
        "def evaluated(x):\n    return x * 2 if torch.is_grad_enabled() else x\n",
        "without a gradient, as in evaluation, its results differ by",
    ),
    Example(
        "of_both(x: [batch, d], w: [d]) -> [batch, d]",
        "",
        "class Both(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x, w):\n        ctx.save_for_backward(x, w)\n        return x * w\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        x, w = ctx.saved_tensors\n"
        "        return g * w * (1 if ctx.needs_input_grad[1] else 2), (g * x).sum(0)\n\n\n"
        "def of_both(x, w):\n    return Both.apply(x, w)\n",
        "where only `x` needs a gradient, its gradients differ by",
    ),
    Example(
        "limited" + ROWS,
        "linear x",
        "def limited(x):\n    return x.clamp(-100, 100)\n",
        "`x` pending over 2 ranks the results differ",
    ),
    Example(
        "of_many" + ROWS,
        "",
        "def of_many(x):\n    return x - x.mean(0) if len(x) > 50 else x * 1\n",
        "`batch` split over 2 ranks the results differ",
    ),
    Example(
        "mode" + ROWS,
        "",
        "def mode(x):\n    x = 2 * x\n    torch.set_num_threads(torch.get_num_threads() + 1)\n    return x\n",
        "it changes the number of threads of torch",
    ),
    Example(
        "worn" + ROWS,
        "",
        "CALLS = []\n\n\ndef worn(x):\n    CALLS.append(x)\n    return x * (1 + (len(CALLS) > 150))\n",
        "a call gives other results after calls with other operands",
    ),
    Example(
        "sparse" + ROWS,
        "",
        "def sparse(x):\n    return x.to_sparse()\n",
        "it gave a tensor that is sparse_coo, of operands that are dense",
    ),
    Example("elsewhere" + ROWS, "", "def elsewhere(x):\n    return x.to('meta')\n", "it gave a tensor that is on meta"),
]
