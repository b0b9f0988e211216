"""tagger.shard, strategy `both`, on 4 ranks.

Written by shardc from the program and its strategy. Each rank runs this file on its own shards, a microbatch at a time;
a comment gives a value's local type and its layout on the mesh. Run it with

    torchrun --nproc-per-node 4 main.py
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F

mesh = rt.Mesh(dp=2, mp=2, microbatch=rt.Time(4))

parameters = [
    rt.Parameter("up.weight", (16, 8), ("kaiming_uniform", 8.0), cut={0: "mp"}, reduce="dp"),
    rt.Parameter("up.bias", (16,), ("uniform", -0.3535533905932738, 0.3535533905932738), cut={0: "mp"}, reduce="dp"),
    rt.Parameter("head.weight", (12, 16), ("kaiming_uniform", 16.0), cut={1: "mp"}, reduce="dp"),
    rt.Parameter("head.bias", (12,), ("uniform", -0.25, 0.25), reduce="dp"),
]


def before_microbatch(x, label):
    # tagger.shard:56  loss = cross_entropy(logits, label, ignore_index = 0)
    loss_count_pending = (label != 0).sum()  # i64[]  [] +dp

    return {"loss_count_pending": loss_count_pending}


def before_step(loss_count_pending):
    loss_count = rt.all_reduce(loss_count_pending, mesh.dp)  # i64[]  []

    return {"loss_count": loss_count}


def forward(p, x, label, loss_count):
    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (up)
    up_out = F.linear(x, p.up.weight, p.up.bias)  # f64[2, 8, 8]  [batch@dp, seq, hidden@mp]

    # tagger.shard:12  h = up(x) |> relu |> dropout(p = 0.25)
    h_1 = torch.relu(up_out)  # f64[2, 8, 8]  [batch@dp, seq, hidden@mp]
    h = rt.dropout(
        h_1, 0.25, rt.random.key("h"), whole=(16, 8, 16),
        offsets=(mesh["microbatch", "dp"].index * 2, 0, mesh.mp.index * 8),
    )  # f64[2, 8, 8]  [batch@dp, seq, hidden@mp]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (head)
    head_bias_pending = rt.identical_to_pending(p.head.bias, mesh.mp)  # f64[12]  [classes] +mp ^dp
    logits_pending = F.linear(h, p.head.weight, head_bias_pending)     # f64[2, 8, 12]  [batch@dp, seq, classes] +mp
    logits = rt.reduce_scatter(logits_pending, 1, mesh.mp)             # f64[2, 4, 12]  [batch@dp, seq@mp, classes]

    # tagger.shard:56  loss = cross_entropy(logits, label, ignore_index = 0)
    label_batch_seq = rt.split(label, 1, mesh.mp)  # i64[2, 4]  [batch@dp, seq@mp]
    loss_pending = F.cross_entropy(
        logits.flatten(0, 1), label_batch_seq.flatten(), ignore_index=0, reduction="sum",
    ) / loss_count  # f64[]  [] +(dp, mp)

    with torch.no_grad():
        # tagger.shard:58  metric accuracy = mean(argmax(logits, over = classes) == label)
        accuracy_1 = logits.argmax(2)               # i64[2, 4]  [batch@dp, seq@mp]
        accuracy_2 = accuracy_1 == label_batch_seq  # bool[2, 4]  [batch@dp, seq@mp]
        accuracy = accuracy_2.double().sum() / 128  # f64[]  [] +(dp, mp)

        # tagger.shard:59  metric size = sum(square(model.head.weight))
        head_weight_classes_hidden = rt.split_replicated(
            p.head.weight, 0, mesh.dp,
        )  # f64[6, 8]  [classes@dp, hidden@mp]
        size_1 = torch.square(head_weight_classes_hidden)  # f64[6, 8]  [classes@dp, hidden@mp]
        size = size_1.sum()                                # f64[]  [] +(dp, mp)

    return loss_pending, {"accuracy": accuracy, "size": size}, {"loss_pending": loss_pending}


def conclude(p, loss_pending):
    # tagger.shard:57  metric perplexity = exp(loss)
    loss = rt.all_reduce(loss_pending, mesh["dp", "mp"])  # f64[]  []
    perplexity = torch.exp(loss)                          # f64[]  []

    return {"perplexity": perplexity}


@torch.no_grad()
def evaluate(p, x, label, rows):
    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (up)
    up_out = F.linear(x, p.up.weight, p.up.bias)  # f64[2, 8, 8]  [batch@dp, seq, hidden@mp]

    # tagger.shard:12  h = up(x) |> relu |> dropout(p = 0.25)
    h = torch.relu(up_out)  # f64[2, 8, 8]  [batch@dp, seq, hidden@mp]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (head)
    head_bias_pending = rt.identical_to_pending(p.head.bias, mesh.mp)  # f64[12]  [classes] +mp ^dp
    logits_pending = F.linear(h, p.head.weight, head_bias_pending)     # f64[2, 8, 12]  [batch@dp, seq, classes] +mp
    logits = rt.reduce_scatter(logits_pending, 1, mesh.mp)             # f64[2, 4, 12]  [batch@dp, seq@mp, classes]

    # tagger.shard:58  metric accuracy = mean(argmax(logits, over = classes) == label)
    label_batch_seq = rt.split(label, 1, mesh.mp)  # i64[2, 4]  [batch@dp, seq@mp]
    accuracy_1 = logits.argmax(2)                  # i64[2, 4]  [batch@dp, seq@mp]
    accuracy = accuracy_1 == label_batch_seq       # bool[2, 4]  [batch@dp, seq@mp]

    # tagger.shard:59  metric size = sum(square(model.head.weight))
    head_weight_classes_hidden = rt.split_replicated(p.head.weight, 0, mesh.dp)  # f64[6, 8]  [classes@dp, hidden@mp]
    size_1 = torch.square(head_weight_classes_hidden)                            # f64[6, 8]  [classes@dp, hidden@mp]
    size = size_1.sum()                                                          # f64[]  [] +(dp, mp)

    # tagger.shard:56  loss = cross_entropy(logits, label, ignore_index = 0)
    loss_total = rt.tally(
        F.cross_entropy(logits.movedim(2, 1), label_batch_seq, ignore_index=0, reduction="none"), 0,
        mesh["microbatch", "dp"].index * 2, rows, mask=label_batch_seq != 0,
    )  # f64[2]  (sum, count) +(dp, mp)

    # tagger.shard:58  metric accuracy = mean(argmax(logits, over = classes) == label)
    accuracy_total = rt.tally(accuracy, 0, mesh["microbatch", "dp"].index * 2, rows)  # f64[2]  (sum, count) +(dp, mp)

    size_total = torch.stack(
        (size.double(), torch.ones_like(size, dtype=torch.float64) / 4)
    )  # f64[2]  (sum, count) +(dp, mp)

    return {"loss:1": loss_total, "accuracy:1": accuracy_total, "size:1": size_total}


def finish(totals):
    loss = totals["loss:1"][0] / totals["loss:1"][1]
    accuracy = totals["accuracy:1"][0] / totals["accuracy:1"][1]
    size = totals["size:1"][0] / totals["size:1"][1]

    # tagger.shard:57  metric perplexity = exp(loss)
    perplexity = torch.exp(loss)

    return {"loss": loss, "perplexity": perplexity, "accuracy": accuracy, "size": size}


program = rt.Program(
    name="tagger.shard", strategy="both", ranks=4,
    mesh=mesh, groups=(("dp",), ("mp",), ("dp", "mp")), seed=0,
    parameters=parameters,
    data=rt.Source(
        "random", batch=16, batches=4,
        fields=[
            rt.Field("x", "f64", (16, 8, 8), cut={0: ("microbatch", "dp")}),
            rt.Field("label", "i64", (16, 8), cut={0: ("microbatch", "dp")}, bound=12),
        ],
    ),
    eval=rt.Source(
        "random", batch=16, batches=2,
        fields=[
            rt.Field("x", "f64", (16, 8, 8), cut={0: ("microbatch", "dp")}),
            rt.Field("label", "i64", (16, 8), cut={0: ("microbatch", "dp")}, bound=12),
        ],
    ),
    optimizers=[
        rt.Optimizer("adamw", lr=0.01, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01),
    ],
    before_microbatch=before_microbatch, before_step=before_step, conclude=conclude,
    forward=forward, loss_pending=("dp", "mp", "microbatch"),
    metrics_pending={"perplexity": (), "accuracy": ("dp", "mp", "microbatch"), "size": ("dp", "mp")},
    evaluate=evaluate, finish=finish,
    eval_pending={
        "loss:1": ("dp", "mp", "microbatch"),
        "accuracy:1": ("dp", "mp", "microbatch"),
        "size:1": ("dp", "mp"),
    },
    epochs=2, bucket_bytes=25_000_000,
    clip=0.5,
    precision="f64",
)

if __name__ == "__main__":
    rt.main(program)
