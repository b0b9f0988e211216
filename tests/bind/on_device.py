"""A loop of the user's own on the pretended device: `python -m tests.bind.on_device` trains digits under some
strategies and prints the losses of each as a line of JSON.
"""

from __future__ import annotations

import json
from itertools import islice

import torch

import shardlang
from shardlang.torch import bind, launch
from tests.bind.test_losses import DIGITS, ON_DEVICE
from tests.device import pretended


def train(made: shardlang.Compiled) -> list[float]:
    net = bind(made)
    assert {each.device.type for each in net.parameters()} <= {pretended.NAME}
    # The pretended device has no fused kernels.
    optimizer = net.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False)
    told = []
    for batch in islice(net.batches(1), 8):
        told.append(net.step(batch))
        net.clip(100.0)
        optimizer.step()
        net.stepped()
    return [each["loss"] for each in told]


if __name__ == "__main__":
    pretended.register()
    for run in ON_DEVICE:
        made = shardlang.compile(shardlang.source(DIGITS), ranks=run.ranks, strategy=run.strategy)
        print(json.dumps(launch(train, made, ranks=run.ranks, device=pretended.NAME)))
