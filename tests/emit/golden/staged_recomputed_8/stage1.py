"""Stage 1 (of 2) of staged.shard, strategy `recomputed`, on 8 ranks.

Written by shardc from the program and its strategy. The ranks with pp = 1 run this file on
their own shards, a microbatch at a time, in the order that main.py says; a comment gives a value's local
type and its layout on the mesh.
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F
from layers import linear
from mesh import mesh


@rt.block()
def net(p, m, h):
    """Net of staged.shard:7: -> [batch@dp, seq@mp, vocab]."""
    # staged.shard:16  y = last(m) + h |> relu
    last_out = rt.recompute(linear, p.last, m)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # staged.shard:16  y = last(m) + h |> relu
    y_1 = last_out + h   # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]
    y = torch.relu(y_1)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (head)
    logits = F.linear(y, p.head.weight, p.head.bias)  # f64[4, 4, 12]  [batch@dp, seq@mp, vocab]
    return logits


@rt.block()
def net_2(p, m, h):
    """Net of staged.shard:7: -> [batch@dp, seq@mp, vocab]."""
    # staged.shard:16  y = last(m) + h |> relu
    last_out = linear(p.last, m)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # staged.shard:16  y = last(m) + h |> relu
    y_1 = last_out + h   # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]
    y = torch.relu(y_1)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (head)
    logits = F.linear(y, p.head.weight, p.head.bias)  # f64[4, 4, 12]  [batch@dp, seq@mp, vocab]
    return logits


def before_microbatch(label):
    # staged.shard:98  loss = cross_entropy(logits, label, ignore_index = 0)
    loss_count_pending = (label != 0).sum()  # i64[]  [] +(dp, mp)

    return {"loss_count_pending": loss_count_pending}


def before_step(loss_count_pending):
    loss_count = rt.all_reduce(loss_count_pending, mesh["dp", "mp"])  # i64[]  []

    return {"loss_count": loss_count}


def forward(p, m, h, label, loss_count):
    # m: f64[4, 4, 16]  [batch@dp, seq@mp, hidden]
    # h: f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # staged.shard:97  logits = model(x)
    logits = net(p, m, h)  # f64[4, 4, 12]  [batch@dp, seq@mp, vocab]

    # staged.shard:98  loss = cross_entropy(logits, label, ignore_index = 0)
    loss_pending = F.cross_entropy(
        logits.flatten(0, 1), label.flatten(), ignore_index=0, reduction="sum",
    ) / loss_count  # f64[]  [] +(dp, mp)

    with torch.no_grad():
        # staged.shard:100  metric accuracy = mean(argmax(logits, over = vocab) == label)
        accuracy_1 = logits.argmax(2)               # i64[4, 4]  [batch@dp, seq@mp]
        accuracy_2 = accuracy_1 == label            # bool[4, 4]  [batch@dp, seq@mp]
        accuracy = accuracy_2.double().sum() / 128  # f64[]  [] +(dp, mp)

    return loss_pending, {"accuracy": accuracy}, {"loss_pending": loss_pending}


def conclude(p, loss_pending):
    # staged.shard:99  metric perplexity = exp(loss)
    loss = rt.all_reduce(loss_pending, mesh["dp", "mp"])  # f64[]  []
    perplexity = torch.exp(loss)                          # f64[]  []

    return {"perplexity": perplexity}


@torch.no_grad()
def evaluate(p, m, h, label, rows):
    # m: f64[4, 4, 16]  [batch@dp, seq@mp, hidden]
    # h: f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # staged.shard:97  logits = model(x)
    logits = net_2(p, m, h)  # f64[4, 4, 12]  [batch@dp, seq@mp, vocab]

    # staged.shard:100  metric accuracy = mean(argmax(logits, over = vocab) == label)
    accuracy_1 = logits.argmax(2)   # i64[4, 4]  [batch@dp, seq@mp]
    accuracy = accuracy_1 == label  # bool[4, 4]  [batch@dp, seq@mp]

    # staged.shard:98  loss = cross_entropy(logits, label, ignore_index = 0)
    loss_total = rt.tally(
        F.cross_entropy(logits.movedim(2, 1), label, ignore_index=0, reduction="none"), 0,
        mesh["microbatch", "dp"].index * 4, rows, mask=label != 0,
    )  # f64[2]  (sum, count) +(dp, mp)

    # staged.shard:100  metric accuracy = mean(argmax(logits, over = vocab) == label)
    accuracy_total = rt.tally(accuracy, 0, mesh["microbatch", "dp"].index * 4, rows)  # f64[2]  (sum, count) +(dp, mp)

    return {"loss:1": loss_total, "accuracy:1": accuracy_total}
