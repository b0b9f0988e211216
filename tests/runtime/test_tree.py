"""The tree that emitted functions are given: paths, layers in order, random keys by layer."""

from __future__ import annotations

import torch

from shardlang import runtime as rt
from shardlang.runtime.tree import namespace

PATHS = ["scale", "path", "net.blocks[2].w", "net.blocks[0].w", "net.blocks[10].w", "net.lambda.__class__.w"]


def test_members_are_found_whatever_they_are_called() -> None:
    tensors = {path: torch.full((1,), float(at)) for at, path in enumerate(PATHS)}
    p = namespace(tensors)
    found = [p.scale, p.path, p.net.blocks[2].w, p.net.blocks[0].w, p.net.blocks[10].w, p.net["lambda"]["__class__"].w]
    assert [value.item() for value in found] == [0, 1, 2, 3, 4, 5]
    assert rt.path(p) == "" and rt.path(p.net["lambda"]["__class__"]) == "net.lambda.__class__"


def test_layers_of_an_array_come_in_the_order_of_their_index() -> None:
    p = namespace({path: torch.zeros(1) for path in PATHS})
    assert [rt.path(block) for block in p.net.blocks] == [f"net.blocks[{at}]" for at in (0, 2, 10)]
    assert [rt.path(block) for block in p.net.blocks[1:10]] == ["net.blocks[2]"]
    assert [rt.path(block) for block in p.net.blocks[2:]] == ["net.blocks[2]", "net.blocks[10]"]


def test_what_is_made_at_each_use_is_made_in_a_loop_too() -> None:
    made = iter(range(9))
    p = namespace({f"blocks[{at}].w": lambda: torch.tensor(next(made)) for at in range(2)})
    assert [block.w.item() for _ in range(2) for block in p.blocks] == [0, 1, 2, 3]
    assert not hasattr(p.blocks[0], "v")


def test_the_key_of_a_layer_is_that_of_its_path() -> None:
    p = namespace({"blocks[3].w": torch.zeros(1)})
    assert rt.random.key(p.blocks[3], "h:1") == rt.random.key("blocks[3].h:1")
    assert rt.random.key(p.blocks[3], "h:1", 2, step=4) == rt.random.key("blocks[3].h:1", 2, step=4)
    assert rt.random.key(p, "h") == rt.random.key("h")
