"""The net and the training of programs/quickstart.shard in MindSpore, data-parallel: the only way its CPU package has.

Each process is started by `msrun` and trains on its own two examples of each batch. In graph mode: in PyNative mode the
job trains too, and then ends with an error.
"""

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import Normal, initializer
from mindspore.communication import get_group_size, get_rank, init

BATCH, INPUT, HIDDEN, OUTPUT, BATCHES, EPOCHS = 16, 32, 16, 16, 4, 5


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = ms.Parameter(initializer(Normal(0.01), [INPUT, HIDDEN]), name="w")
        self.w2 = ms.Parameter(initializer(Normal(0.01), [HIDDEN, OUTPUT]), name="w2")
        self.relu = ops.ReLU()

    def construct(self, x):
        return ops.matmul(self.relu(ops.matmul(x, self.w)), self.w2)


def main():
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    ms.set_seed(1)
    init()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    net = Net()
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.4, 0.1))
    step.set_train()
    random = np.random.default_rng(1)
    x = random.random((BATCHES, BATCH, INPUT), np.float32)
    label = random.random((BATCHES, BATCH, OUTPUT), np.float32)
    each = BATCH // get_group_size()
    mine = slice(get_rank() * each, (get_rank() + 1) * each)
    for epoch in range(EPOCHS):
        for batch in range(BATCHES):
            loss = step(ms.Tensor(x[batch, mine]), ms.Tensor(label[batch, mine]))
        print(f"epoch {epoch + 1}  loss {float(loss.asnumpy()):.6g}", flush=True)


main()
