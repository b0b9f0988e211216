"""digits.shard, strategy `sharded`, on 8 ranks.

Written by shardc from the program and its strategy. Each rank runs this file on its own shards;
a comment gives a value's local type and its layout on the mesh. Run it with

    torchrun --nproc-per-node 8 main.py
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F

mesh = rt.Mesh(dp=8)

parameters = [
    rt.Parameter("up.weight", (128, 64), ("kaiming_uniform", 64.0), reduce="dp", zero=(3, "dp")),
    rt.Parameter("up.bias", (128,), ("uniform", -0.125, 0.125), reduce="dp", zero=(3, "dp")),
    rt.Parameter("down.weight", (10, 128), ("kaiming_uniform", 128.0), reduce="dp", zero=(3, "dp")),
    rt.Parameter("down.bias", (10,), ("uniform", -0.08838834764831845, 0.08838834764831845),
                 reduce="dp", zero=(3, "dp")),
]


@rt.block()
def digits(p, image):
    """Digits of digits.shard:7: image [batch@dp, pixels] -> [batch@dp, classes]."""
    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (up)
    up_out = F.linear(image, p.up.weight, p.up.bias)  # f32[8, 128]  [batch@dp, hidden]

    # digits.shard:12  h = up(image) |> relu
    h = torch.relu(up_out)  # f32[8, 128]  [batch@dp, hidden]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (down)
    scores = F.linear(h, p.down.weight, p.down.bias)  # f32[8, 10]  [batch@dp, classes]
    return scores


def forward(p, image, label):
    # digits.shard:45  scores = model(image)
    scores = digits(p, image)  # f32[8, 10]  [batch@dp, classes]

    # digits.shard:46  loss = cross_entropy(scores, label)
    loss = F.cross_entropy(scores, label, reduction="sum") / 64  # f32[]  [] +dp

    with torch.no_grad():
        # digits.shard:47  metric accuracy = mean(argmax(scores, over = classes) == label)
        accuracy_1 = scores.argmax(1)             # i64[8]  [batch@dp]
        accuracy_2 = accuracy_1 == label          # bool[8]  [batch@dp]
        accuracy = accuracy_2.float().sum() / 64  # f32[]  [] +dp

    return loss, {"accuracy": accuracy}


@torch.no_grad()
def evaluate(p, image, label, rows):
    # digits.shard:45  scores = model(image)
    scores = digits(p, image)  # f32[8, 10]  [batch@dp, classes]

    # digits.shard:47  metric accuracy = mean(argmax(scores, over = classes) == label)
    accuracy_1 = scores.argmax(1)   # i64[8]  [batch@dp]
    accuracy = accuracy_1 == label  # bool[8]  [batch@dp]

    # digits.shard:46  loss = cross_entropy(scores, label)
    loss_total = rt.tally(
        F.cross_entropy(scores, label, reduction="none"), 0, mesh.dp.index * 8, rows,
    )  # f64[2]  (sum, count) +dp

    # digits.shard:47  metric accuracy = mean(argmax(scores, over = classes) == label)
    accuracy_total = rt.tally(accuracy, 0, mesh.dp.index * 8, rows)  # f64[2]  (sum, count) +dp

    return {"loss:1": loss_total, "accuracy:1": accuracy_total}


def finish(totals):
    loss = totals["loss:1"][0] / totals["loss:1"][1]
    accuracy = totals["accuracy:1"][0] / totals["accuracy:1"][1]

    return {"loss": loss, "accuracy": accuracy}


program = rt.Program(
    name="digits.shard", strategy="sharded", ranks=8,
    mesh=mesh, groups=(("dp",),), seed=0,
    parameters=parameters,
    data=rt.Source(
        "digits", batch=64, split="train",
        fields=[
            rt.Field("image", "f32", (64, 64), cut={0: "dp"}),
            rt.Field("label", "i64", (64,), cut={0: "dp"}, bound=10),
        ],
    ),
    eval=rt.Source(
        "digits", batch=64, split="test",
        fields=[
            rt.Field("image", "f32", (64, 64), cut={0: "dp"}),
            rt.Field("label", "i64", (64,), cut={0: "dp"}, bound=10),
        ],
    ),
    optimizers=[
        rt.Optimizer("sgd", lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False),
    ],
    forward=forward, loss_pending=("dp",), metrics_pending={"accuracy": ("dp",)},
    gathers=rt.Order(forward=("up", "down"), backward=("down.weight",)),
    evaluate=evaluate, finish=finish, eval_pending={"loss:1": ("dp",), "accuracy:1": ("dp",)},
    epochs=10, bucket_bytes=25_000_000,
    precision="f32",
)

if __name__ == "__main__":
    rt.main(program)
