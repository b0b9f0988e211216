"""Stage 3 (of 4) of staged.shard, strategy `looped`, on 4 ranks.

Written by shardc from the program and its strategy. The ranks with pp = 1 run this file on
their own shards, a microbatch at a time, in the order that main.py says; a comment gives a value's local
type and its layout on the mesh.
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F
from mesh import mesh


def before_microbatch(label):
    # staged.shard:98  loss = cross_entropy(logits, label, ignore_index = 0)
    loss_count_pending = (label != 0).sum()  # i64[]  [] +dp

    return {"loss_count_pending": loss_count_pending}


def before_step(loss_count_pending):
    loss_count = rt.all_reduce(loss_count_pending, mesh.dp)  # i64[]  []

    return {"loss_count": loss_count}


def forward(p, y, label, loss_count):
    # y: f64[2, 8, 16]  [batch@dp, seq, hidden]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (head)
    logits = F.linear(y, p.head.weight, p.head.bias)  # f64[2, 8, 12]  [batch@dp, seq, vocab]

    # staged.shard:98  loss = cross_entropy(logits, label, ignore_index = 0)
    loss_pending = F.cross_entropy(
        logits.flatten(0, 1), label.flatten(), ignore_index=0, reduction="sum",
    ) / loss_count  # f64[]  [] +dp

    with torch.no_grad():
        # staged.shard:100  metric accuracy = mean(argmax(logits, over = vocab) == label)
        accuracy_1 = logits.argmax(2)               # i64[2, 8]  [batch@dp, seq]
        accuracy_2 = accuracy_1 == label            # bool[2, 8]  [batch@dp, seq]
        accuracy = accuracy_2.double().sum() / 128  # f64[]  [] +dp

    return loss_pending, {"accuracy": accuracy}, {"loss_pending": loss_pending}


def conclude(p, loss_pending):
    # staged.shard:99  metric perplexity = exp(loss)
    loss = rt.all_reduce(loss_pending, mesh.dp)  # f64[]  []
    perplexity = torch.exp(loss)                 # f64[]  []

    return {"perplexity": perplexity}


@torch.no_grad()
def evaluate(p, y, label, rows):
    # y: f64[2, 8, 16]  [batch@dp, seq, hidden]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (head)
    logits = F.linear(y, p.head.weight, p.head.bias)  # f64[2, 8, 12]  [batch@dp, seq, vocab]

    # staged.shard:100  metric accuracy = mean(argmax(logits, over = vocab) == label)
    accuracy_1 = logits.argmax(2)   # i64[2, 8]  [batch@dp, seq]
    accuracy = accuracy_1 == label  # bool[2, 8]  [batch@dp, seq]

    # staged.shard:98  loss = cross_entropy(logits, label, ignore_index = 0)
    loss_total = rt.tally(
        F.cross_entropy(logits.movedim(2, 1), label, ignore_index=0, reduction="none"), 0,
        mesh["microbatch", "dp"].index * 2, rows, mask=label != 0,
    )  # f64[2]  (sum, count) +dp

    # staged.shard:100  metric accuracy = mean(argmax(logits, over = vocab) == label)
    accuracy_total = rt.tally(accuracy, 0, mesh["microbatch", "dp"].index * 2, rows)  # f64[2]  (sum, count) +dp

    return {"loss:1": loss_total, "accuracy:1": accuracy_total}
