"""Stages and schedules that do not fit: the message says what would, and what it says would fit does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardlang.diagnostics.diagnostic import Diagnostic
from shardlang.facts.actions import Action
from shardlang.plan.pipeline import schedules
from tests.emit import sources
from tests.end_to_end.curves import ROOT

EXAMPLE = (ROOT / "examples" / "transformer.shard").read_text()
STAGES = EXAMPLE[EXAMPLE.index("stages over pp") : EXAMPLE.index("  microbatches 4")]
SMALL = {"batch": "24", "model.d": "48", "model.heads": "6", "model.vocab": "64", "model.layers": "6"}
VIRTUAL = (STAGES, "stages over pp balanced, virtual = 2\n"), ('"1f1b"', '"interleaved_1f1b"')
Changes = tuple[tuple[str, str], ...]


def found(changes: Changes, ranks: int = 8, **sizes: str) -> list[Diagnostic]:
    """What three_d on so many ranks reports, after replacements in the example's text."""
    text = EXAMPLE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    given = SMALL | {("batch" if k == "batch" else f"model.{k}"): v for k, v in sizes.items()}
    return sources.tried(text, ranks, "three_d", settings=given)[1].found


def only(changes: Changes, ranks: int = 8, **sizes: str) -> Diagnostic:
    diagnostics = found(changes, ranks, **sizes)
    assert len(diagnostics) == 1, [d.message for d in diagnostics]
    return diagnostics[0]


def test_heads_that_do_not_divide() -> None:
    it = only((("mp = 2\n", "mp = 4\n"),))
    assert (it.code, it.message) == ("SH304", "dim `heads` does not divide over axis `mp`")
    two = "`mesh mp1 = 2, mp2 = 2`, with `split heads over mp1` and `split ffn, vocab over (mp1, mp2)`"
    assert it.help == (f"`mp` could be 2 on 8 ranks; or make two axes of it, {two}",)
    assert not found(())
    # An axis that takes the ranks that are left goes on to do so.
    (it, *_) = found((("mp = 2\n", "mp = auto\n"), ("dp = auto", "dp = 1")), 8)
    assert it.code == "SH304" and "`mesh mp1 = 2, mp2 = auto`" in it.help[0], it.help


def test_layers_that_do_not_divide_are_cut_unevenly() -> None:
    for layers in ("4", "5", "6"):
        assert not found(VIRTUAL, layers=layers)


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "zero_bubble", "dualpipe_v"])
def test_seven_microbatches(schedule: str) -> None:
    """Each number that is offered fits, the batch of a rank too; so does the other schedule."""
    pp, ranks, batch = ("4", 16, "56") if schedule == "dualpipe_v" else ("2", 8, "56")
    changes: Changes = (
        (STAGES, "stages over pp balanced, virtual = 2\n"), ('"1f1b"', f'"{schedule}"'), ("pp = 2", f"pp = {pp}"),
    )  # fmt: skip
    it = only((*changes, ("microbatches 4", "microbatches 7")), ranks, batch=batch, layers="4")
    assert it.code == "SH443" and it.message.endswith("and there are 7")
    offered = re.findall(r"\d+", it.help[0])
    assert offered
    for number in offered:
        assert not found((*changes, ("microbatches 4", f"microbatches {number}")), ranks, batch=batch, layers="4")
    for other in re.findall(r'"(\w+)"', it.help[1]):
        kept = tuple((old, new.replace(schedule, other)) for old, new in changes)
        assert not found((*kept, ("microbatches 4", "microbatches 7")), ranks, batch=batch, layers="4"), other


def test_a_batch_that_no_number_fits() -> None:
    it = only(
        (("pp = 2", "pp = 4"), (STAGES, "stages over pp balanced\n"), ("microbatches 4", "microbatches 2")), batch="2"
    )
    assert it.code == "SH443"
    assert it.help == (
        "make the batch a multiple of 4",
        'or keep 2 under the schedule "gpipe", "interleaved_1f1b" or "zero_bubble"',
    )


def test_a_schedule_longer_than_any_run_needs() -> None:
    """It is not written out first: that took half a minute for 16 million passes."""
    it = only((("microbatches 4", "microbatches 1000000"),), batch="1000000")
    assert (it.code, it.message) == (
        "SH443", "2 stages with 1,000,000 microbatches make 4,000,000 passes, and a schedule has at most 500,000",
    )  # fmt: skip
    assert it.help == ("give at most 125,000 microbatches, or fewer stages",)


def test_a_schedule_of_stages_that_are_wrong_is_not_written_out() -> None:
    known, wrong = schedules.SCHEDULES["1f1b"], 2

    def line(stages: int, coordinates: int, microbatches: int, rank: int) -> Sequence[Action]:
        if stages == wrong:
            raise ZeroDivisionError
        return known.line(stages, coordinates, microbatches, rank)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(schedules.SCHEDULES, "1f1b", replace(known, line=line))
        with pytest.raises(ZeroDivisionError):
            found(())
        wrong = 4
        assert [it.code for it in found((("pp = 2", "pp = 4"),))] == ["SH423"]


def test_empty_stages() -> None:
    it = only((("pp = 2", "pp = 4"),))
    assert (it.code, it.message) == ("SH423", "stages 2 and 3 are empty")
    assert it.help == (
        "add `2: LAYER, ...` with layers of its own",
        "or take `pp = 2`, for the 2 stages that have layers",
    )


@pytest.mark.parametrize(
    ("changes", "layer", "offer"),
    [
        ((("1: decoder", "1: encoder.norm, decoder"),), "encoder.norm",
         "take it out of stage 1, or in stage 0 name the other parts of `encoder`"),
        ((("0: src_embed", "0: head, src_embed"),), "head", "take it out of stage 0 or of stage 1"),
        ((("tgt_embed, encoder\n", "tgt_embed, encoder, decoder.blocks[0..4]\n"),
          ("1: decoder,", "1: decoder.blocks[3..6], decoder.norm,")), "decoder.blocks[3]",
         "a range leaves its end out: `[0..4]` and `[4..8]` share none; let one of them leave `decoder.blocks[3]` out"),
    ],
)  # fmt: skip
def test_a_layer_in_two_stages(changes: Changes, layer: str, offer: str) -> None:
    it = only(changes)
    assert (it.code, it.message) == ("SH422", f"layer `{layer}` is in stage 0 and in stage 1")
    assert it.help == (offer,)


def test_a_value_that_flows_back() -> None:
    it = only((("tgt_embed, encoder\n", "tgt_embed, decoder\n"), ("1: decoder,", "1: encoder,")))
    assert (it.code, it.message) == ("SH424", "`memory` flows back, from stage 1 to `decoder` in stage 0")
    assert it.help == ("move `decoder` to stage 1, or `encoder` to stage 0",)


SHARED_KEYS = """
use std.llama: Llama

dim batch = 8, seq = 8

strategy s {
  RULES
}

train {
  model = Llama(d = 32, heads = 4, kv_heads = 2, ffn = 32, vocab = 32, layers = 2)
  data = random(tokens: i64[batch, seq] < 32, label: i64[batch, seq] < 32, batches = 2)
  loss = cross_entropy(model(tokens), label)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def test_help_for_fewer_heads_of_keys_than_ranks_is_a_strategy_that_fits() -> None:
    text = SHARED_KEYS.replace("RULES", "mesh tp = 4\n  split heads, kv_heads, ffn, vocab over tp")
    plan, sink = sources.tried(text, 4)
    (it,) = sink.found
    assert plan is None
    typed = re.findall(r"`((?:mesh|split) [^`]+)`", it.help[0])
    assert typed == ["mesh tp1 = 2, tp2 = 2", "split kv_heads over tp1", "split heads, ffn, vocab over (tp1, tp2)"]
    sources.planned(SHARED_KEYS.replace("RULES", "\n  ".join(typed)), 4)
