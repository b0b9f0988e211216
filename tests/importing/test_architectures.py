"""The command that imports every architecture of `transformers`: a few of them, and its totals."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("transformers", reason="the library transformers is not installed")

from tests.importing.architectures import limited, outcome, table
from tests.importing.tiny import LARGEST, built, names

REASONS = ["the language has no word for 2 operations of the module",
           "  2 x `aten.sort`: `net.0`, a.py:3; `net.1`, a.py:3"]  # fmt: skip


def test_a_tiny_model_of_an_architecture_is_imported_in_a_process_of_its_own() -> None:
    assert len(names()) >= 90
    found = limited("bert", 120)
    assert found["outcome"] == "whole" and "model BertForMaskedLM(" in found["text"]


@pytest.mark.parametrize("name", ["granite_swa", "mimo_v2_flash"])  # masks of their own
def test_a_layer_whose_first_step_stands_before_what_its_others_read_is_behind_that(name: str) -> None:
    found = outcome(name)
    assert found["outcome"] == "whole" and "self_attn(input_layernorm(x)" in found["text"]


@pytest.mark.parametrize("name", ["qwen2_audio", "llama4", "deepseek_v2", "hubert", "swin", "esm"])
def test_a_tiny_model_is_built_of_configurations_that_leave_much_open(name: str) -> None:
    net, inputs = built(name)
    assert 0 < sum(each.numel() for each in net.parameters()) < LARGEST // 10
    assert all(each.shape[0] == 2 for each in inputs.values())


def test_what_takes_too_long_or_cannot_be_built_is_said() -> None:
    assert limited("bert", 0)["outcome"] == "too slow"
    assert limited("timm_wrapper", 120)["outcome"] == "not built"


@pytest.mark.parametrize("code, how", [(3, "exit code 3"), (-6, "SIGABRT (signal 6)")])
def test_a_process_that_ends_is_told_with_how_it_ended(code: int, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(name: str) -> dict[str, object]:
        os.kill(os.getpid(), -code) if code < 0 else os._exit(code)
        return {}

    monkeypatch.setattr("tests.importing.architectures.outcome", ends)
    found = limited("bert", 120)
    assert found["outcome"] == "fault" and found["reasons"] == [f"its process ended ({how})"]


def test_totals_count_each_reason_once_a_model() -> None:
    refused = {"outcome": "refused", "reasons": REASONS}
    text = table({"a": {"outcome": "whole"}, "b": refused, "c": refused, "d": {"outcome": "not built", "reasons": []}})
    assert "   2 `aten.sort`\n" in text
    assert text.endswith("4 architectures: 2 refused, 1 whole, 1 not built; 33 % of 3 built ones are whole")


def test_an_architecture_with_operators_of_its_own_is_not_whole() -> None:
    found = limited("fnet", 120)
    assert found["outcome"] == "opaque" and found["operators"] == ["torch_fft_fftn_real"]
    assert any("aten.fft_fftn" in reason for reason in found["reasons"])
    assert table({"fnet": found}).endswith("1 architectures: 1 opaque; 0 % of 1 built ones are whole")
