"""Name maps: what is read of them, and what is told of those that do not fit."""

from __future__ import annotations

import pytest

from tests.check.checked import Checked, checked

TEXT = """
use std.nn: Linear

dim batch = 8, d = 16

model Net(layers: int = 2) {
  layer blocks[layers] = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    return x |> blocks
  }
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 4)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.1)
  steps = 1
  init = safetensors("w.safetensors", names = "their.map")
}
"""
GOOD = "blocks[*].weight = h.*.w transposed\nblocks[*].bias = h.*.b part 2 of 3  # the second\n"


def mapped(lines: str) -> Checked:
    return checked(TEXT, files={"their.map": lines})


def test_lines_are_read() -> None:
    program = mapped(f"prefix model.\nignore h.*.mask\n{GOOD}\n\n# no more\nhead.weight? = head.w\n").program
    assert program is not None and program.training is not None and program.training.init is not None
    kind, arguments = program.training.init
    names = arguments["names"]
    assert (kind, arguments["path"]) == ("safetensors", "w.safetensors")
    assert [(r.ours, r.theirs, r.transposed, r.part) for r in names.rules] == [
        ("blocks[*].weight", "h.*.w", True, None),
        ("blocks[*].bias", "h.*.b", False, (2, 3)),
    ]
    # What only a line names that this program has nothing for is not needed.
    assert (names.prefix, names.ignored) == ("model.", ("h.*.mask", "head.w"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (GOOD + "nonsense", "`nonsense` is no line of a name map"),
        (GOOD + "a = b = c", "`a = b = c` is no line of a name map"),
        (GOOD + "a = b upside down", "`a = b upside down` is no line of a name map"),
        (GOOD + "blocks[*].w = h.0.w", "`blocks[*].w` has 1 `*`, and `h.0.w` 0"),
        (GOOD + "ignore a.***", "a part of `a.***` has 3 `*`, and at most 2 can be there between dots or brackets"),
        (GOOD + "*a*b* = *a*b*", "a part of `*a*b*` has 3 `*`, and at most 2 can be there between dots or brackets"),
        (GOOD + "x = y part 4 of 3", "there is no part 4 of 3"),
        (GOOD + "x = y part 0 of 3", "there is no part 0 of 3"),
        (GOOD + "blocks[*].wieght = h.*.w", "the program has no parameter `blocks[*].wieght`"),
        (GOOD + "blocks[0].bias = b", "two lines of the name map are for `blocks[0].bias`"),
        ("blocks[*].bias = h.*.b", "the name map has no line for `blocks[0].weight`, `blocks[1].weight`"),
    ],
)
def test_maps_that_do_not_fit(lines: str, message: str) -> None:
    assert mapped(lines).messages == [f"SH240: {message}"]


def test_a_place_is_in_the_map() -> None:
    (found,) = mapped(GOOD + "blocks[*].wieght = h.*.w").found
    assert found.primary is not None and found.primary.span.source.name == "their.map"
    assert found.primary.span.text == "blocks[*].wieght = h.*.w"
    assert found.help == ("did you mean `blocks[*].weight`?",)


@pytest.mark.parametrize("name", ["other.map", "std.gpt3", "std.", "std.map"])
def test_a_map_that_is_not_there(name: str) -> None:
    found = checked(TEXT.replace("their.map", name), files={"their.map": GOOD})
    assert found.messages == [f"SH203: there is no name map `{name}`"]


def test_other_arguments() -> None:
    text = TEXT.replace("names =", "name =")
    assert checked(text, files={"their.map": GOOD}).messages == ["SH237: `init` is a file of weights"]
    text = TEXT.replace('"their.map"', "3")
    assert [m[:28] for m in checked(text).messages] == ["SH210: a path must be a text"]
