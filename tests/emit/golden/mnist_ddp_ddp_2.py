"""mnist_ddp.shard, strategy `ddp`, on 2 ranks.

Written by shardc from the program and its strategy. Each rank runs this file on its own shards;
a comment gives a value's local type and its layout on the mesh. Run it with

    torchrun --nproc-per-node 2 main.py
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F

mesh = rt.Mesh(dp=2)

parameters = [
    rt.Parameter("conv1.weight", (10, 1, 5, 5), ("kaiming_uniform", 25.0), reduce="dp"),
    rt.Parameter("conv1.bias", (10,), ("uniform", -0.2, 0.2), reduce="dp"),
    rt.Parameter("conv2.weight", (20, 10, 5, 5), ("kaiming_uniform", 250.0), reduce="dp"),
    rt.Parameter("conv2.bias", (20,), ("uniform", -0.06324555320336758, 0.06324555320336758), reduce="dp"),
    rt.Parameter("fc1.weight", (50, 320), ("kaiming_uniform", 320.0), reduce="dp"),
    rt.Parameter("fc1.bias", (50,), ("uniform", -0.05590169943749474, 0.05590169943749474), reduce="dp"),
    rt.Parameter("fc2.weight", (10, 50), ("kaiming_uniform", 50.0), reduce="dp"),
    rt.Parameter("fc2.bias", (10,), ("uniform", -0.1414213562373095, 0.1414213562373095), reduce="dp"),
]


def forward(p, image, label):
    # std.nn:27  return conv2d(x, weight, bias, stride = stride, padding = padding)   (conv1)
    conv1_out = F.conv2d(image, p.conv1.weight, p.conv1.bias)  # f32[64, 10, 24, 24]  [batch@dp, conv1.out, 24, 24]

    # mnist_ddp.shard:16  a = conv1(image) |> max_pool2d(2) |> relu
    a_1 = F.max_pool2d(conv1_out, 2)  # f32[64, 10, 12, 12]  [batch@dp, conv1.out, 12, 12]
    a = torch.relu(a_1)               # f32[64, 10, 12, 12]  [batch@dp, conv1.out, 12, 12]

    # std.nn:27  return conv2d(x, weight, bias, stride = stride, padding = padding)   (conv2)
    conv2_out = F.conv2d(a, p.conv2.weight, p.conv2.bias)  # f32[64, 20, 8, 8]  [batch@dp, conv2.out, 8, 8]

    # std.nn:147  return dropout2d(x, p = p)   (drop2)
    drop2_out = rt.dropout2d(
        conv2_out, 0.5, rt.random.key("drop2.return"), whole=(128, 20, 8, 8), offsets=(mesh.dp.index * 64, 0, 0, 0),
    )  # f32[64, 20, 8, 8]  [batch@dp, conv2.out, 8, 8]

    # mnist_ddp.shard:17  b = conv2(a) |> drop2 |> max_pool2d(2) |> relu
    b_1 = F.max_pool2d(drop2_out, 2)  # f32[64, 20, 4, 4]  [batch@dp, conv2.out, 4, 4]
    b = torch.relu(b_1)               # f32[64, 20, 4, 4]  [batch@dp, conv2.out, 4, 4]

    # mnist_ddp.shard:18  c = flatten(b, keep = batch) |> fc1 |> relu |> drop
    c_1 = b.flatten(1)  # f32[64, 320]  [batch@dp, conv2.out * 4 * 4]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (fc1)
    fc1_out = F.linear(c_1, p.fc1.weight, p.fc1.bias)  # f32[64, 50]  [batch@dp, fc1.out]

    # mnist_ddp.shard:18  c = flatten(b, keep = batch) |> fc1 |> relu |> drop
    c_2 = torch.relu(fc1_out)  # f32[64, 50]  [batch@dp, fc1.out]

    # std.nn:140  return dropout(x, p = p)   (drop)
    c = rt.dropout(
        c_2, 0.5, rt.random.key("drop.return"), whole=(128, 50), offsets=(mesh.dp.index * 64, 0),
    )  # f32[64, 50]  [batch@dp, fc1.out]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (fc2)
    fc2_out = F.linear(c, p.fc2.weight, p.fc2.bias)  # f32[64, 10]  [batch@dp, classes]

    # mnist_ddp.shard:19  return log_softmax(fc2(c), over = classes)
    scores = F.log_softmax(fc2_out, 1)  # f32[64, 10]  [batch@dp, classes]

    # mnist_ddp.shard:33  loss = nll_loss(scores, label)
    loss = F.nll_loss(scores, label, reduction="sum") / 128  # f32[]  [] +dp

    with torch.no_grad():
        # mnist_ddp.shard:34  metric accuracy = mean(argmax(scores, over = classes) == label)
        accuracy_1 = scores.argmax(1)              # i64[64]  [batch@dp]
        accuracy_2 = accuracy_1 == label           # bool[64]  [batch@dp]
        accuracy = accuracy_2.float().sum() / 128  # f32[]  [] +dp

    return loss, {"accuracy": accuracy}


@torch.no_grad()
def evaluate(p, image, label, rows):
    # std.nn:27  return conv2d(x, weight, bias, stride = stride, padding = padding)   (conv1)
    conv1_out = F.conv2d(image, p.conv1.weight, p.conv1.bias)  # f32[64, 10, 24, 24]  [batch@dp, conv1.out, 24, 24]

    # mnist_ddp.shard:16  a = conv1(image) |> max_pool2d(2) |> relu
    a_1 = F.max_pool2d(conv1_out, 2)  # f32[64, 10, 12, 12]  [batch@dp, conv1.out, 12, 12]
    a = torch.relu(a_1)               # f32[64, 10, 12, 12]  [batch@dp, conv1.out, 12, 12]

    # std.nn:27  return conv2d(x, weight, bias, stride = stride, padding = padding)   (conv2)
    conv2_out = F.conv2d(a, p.conv2.weight, p.conv2.bias)  # f32[64, 20, 8, 8]  [batch@dp, conv2.out, 8, 8]

    # mnist_ddp.shard:17  b = conv2(a) |> drop2 |> max_pool2d(2) |> relu
    b_1 = F.max_pool2d(conv2_out, 2)  # f32[64, 20, 4, 4]  [batch@dp, conv2.out, 4, 4]
    b = torch.relu(b_1)               # f32[64, 20, 4, 4]  [batch@dp, conv2.out, 4, 4]

    # mnist_ddp.shard:18  c = flatten(b, keep = batch) |> fc1 |> relu |> drop
    c_1 = b.flatten(1)  # f32[64, 320]  [batch@dp, conv2.out * 4 * 4]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (fc1)
    fc1_out = F.linear(c_1, p.fc1.weight, p.fc1.bias)  # f32[64, 50]  [batch@dp, fc1.out]

    # mnist_ddp.shard:18  c = flatten(b, keep = batch) |> fc1 |> relu |> drop
    c = torch.relu(fc1_out)  # f32[64, 50]  [batch@dp, fc1.out]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (fc2)
    fc2_out = F.linear(c, p.fc2.weight, p.fc2.bias)  # f32[64, 10]  [batch@dp, classes]

    # mnist_ddp.shard:19  return log_softmax(fc2(c), over = classes)
    scores = F.log_softmax(fc2_out, 1)  # f32[64, 10]  [batch@dp, classes]

    # mnist_ddp.shard:34  metric accuracy = mean(argmax(scores, over = classes) == label)
    accuracy_1 = scores.argmax(1)   # i64[64]  [batch@dp]
    accuracy = accuracy_1 == label  # bool[64]  [batch@dp]

    # mnist_ddp.shard:33  loss = nll_loss(scores, label)
    loss_total = rt.tally(
        F.nll_loss(scores, label, reduction="none"), 0, mesh.dp.index * 64, rows,
    )  # f64[2]  (sum, count) +dp

    # mnist_ddp.shard:34  metric accuracy = mean(argmax(scores, over = classes) == label)
    accuracy_total = rt.tally(accuracy, 0, mesh.dp.index * 64, rows)  # f64[2]  (sum, count) +dp

    return {"loss:1": loss_total, "accuracy:1": accuracy_total}


def finish(totals):
    loss = totals["loss:1"][0] / totals["loss:1"][1]
    accuracy = totals["accuracy:1"][0] / totals["accuracy:1"][1]

    return {"loss": loss, "accuracy": accuracy}


program = rt.Program(
    name="mnist_ddp.shard", strategy="ddp", ranks=2,
    mesh=mesh, groups=(("dp",),), seed=0,
    parameters=parameters,
    data=rt.Source(
        "mnist", batch=128, path="data/mnist", split="train",
        fields=[
            rt.Field("image", "f32", (128, 1, 28, 28), cut={0: "dp"}),
            rt.Field("label", "i64", (128,), cut={0: "dp"}, bound=10),
        ],
    ),
    eval=rt.Source(
        "mnist", batch=128, path="data/mnist", split="test",
        fields=[
            rt.Field("image", "f32", (128, 1, 28, 28), cut={0: "dp"}),
            rt.Field("label", "i64", (128,), cut={0: "dp"}, bound=10),
        ],
    ),
    optimizers=[
        rt.Optimizer("sgd", lr=0.01, momentum=0.5, dampening=0.0, weight_decay=0.0, nesterov=False),
    ],
    forward=forward, loss_pending=("dp",), metrics_pending={"accuracy": ("dp",)},
    evaluate=evaluate, finish=finish, eval_pending={"loss:1": ("dp",), "accuracy:1": ("dp",)},
    epochs=10, bucket_bytes=25_000_000,
    precision="f32",
)

if __name__ == "__main__":
    rt.main(program)
