"""Name maps as the runtime applies them: any block of a parameter is read from its place in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shardlang import runtime as rt
from shardlang.errors import RunError
from shardlang.runtime.program import Extent
from shardlang.runtime.state.weights import InitialWeights

RULES = [
    rt.Named("blocks[*].q.weight", "h.*.qkv", transposed=True, part=(1, 3)),
    rt.Named("blocks[*].v.weight", "h.*.qkv", transposed=True, part=(3, 3)),
    rt.Named("blocks[*].v.bias", "h.*.bias", part=(2, 2)),
    rt.Named("scale", "scale"),
]
NAMES = rt.Names(RULES, prefix="model.", ignored=["h.*.mask"])
MESH = rt.Mesh(a=1)


def parameter(path: str, *shape: int) -> rt.Parameter:
    return rt.Parameter(path, shape)


OURS = [
    parameter("blocks[0].q.weight", 4, 6),
    parameter("blocks[0].v.weight", 4, 6),
    parameter("blocks[0].v.bias", 4),
    parameter("scale"),
]


def theirs() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return {
        "model.h.0.qkv": torch.randn(6, 12),
        "model.h.0.bias": torch.randn(8),
        "model.h.0.mask": torch.ones(2),
        "scale": torch.tensor(3.0),
    }


def block(tensor: rt.Parameter, rows: slice = slice(None)) -> Extent:
    """Some rows of a tensor."""
    if not tensor.shape:
        return Extent((), ())
    first, last, _ = rows.indices(tensor.shape[0])
    return Extent((first, *[0] * (len(tensor.shape) - 1)), (last - first, *tensor.shape[1:]))


def test_blocks_are_read_from_their_places(tmp_path: Path) -> None:
    tensors = theirs()
    save_file(tensors, tmp_path / "w.safetensors")
    weights = InitialWeights(tmp_path / "w.safetensors", OURS, NAMES)
    for rows in (slice(None), slice(1, 3), slice(2, 4)):
        q, v, bias, scale = (weights.read(tensor, block(tensor, rows), torch.float64) for tensor in OURS)
        qkv = tensors["model.h.0.qkv"].T.double()
        torch.testing.assert_close(q, qkv[:4][rows])
        torch.testing.assert_close(v, qkv[8:][rows])
        torch.testing.assert_close(bias, tensors["model.h.0.bias"].double()[4:][rows])
        assert scale.item() == 3.0
        assert q.is_contiguous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.h.0.bias": None}, "the file lacks `h.0.bias`"),
        ({"extra": torch.ones(1)}, "the file has, and the program has not, `extra`"),
        (
            {"model.h.0.bias": torch.ones(7)},
            "`blocks[0].v.bias` is [7] in the file and [4] in the program, read from `model.h.0.bias`, part 2 of 2",
        ),
        (
            {"model.h.0.qkv": torch.ones(12, 6)},
            "`blocks[0].q.weight` is [2, 12] in the file and [4, 6] in the program, read from `model.h.0.qkv` "
            "transposed, part 1 of 3",
        ),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, torch.Tensor | None], message: str, tmp_path: Path) -> None:
    tensors = {name: x for name, x in {**theirs(), **change}.items() if x is not None}
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(RunError) as failure:
        InitialWeights(tmp_path / "w.safetensors", OURS, NAMES)
    assert (failure.value.code, failure.value.message) == ("SH504", message)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint8, torch.int8, torch.float8_e4m3fn, torch.int16])
def test_numbers_that_would_be_read_as_others_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    """The imaginary half of a number, and the scale of those in 8 bits."""
    save_file({**theirs(), "model.h.0.qkv": torch.ones(6, 12).to(dtype)}, tmp_path / "w.safetensors")
    with pytest.raises(
        RunError, match=r"^error\[SH504\]: `blocks\[0\].q.weight` is .* in the file, and can be f64, f32"
    ):
        InitialWeights(tmp_path / "w.safetensors", OURS, NAMES)
    save_file({**theirs(), "model.h.0.mask": torch.ones(2).to(dtype)}, tmp_path / "w.safetensors")
    InitialWeights(tmp_path / "w.safetensors", OURS, NAMES)  # what is not read may be anything


@pytest.mark.parametrize(
    "dtype, name, kind",
    [
        (torch.int64, "i64", "whole numbers"), (torch.int32, "i32", "whole numbers"),
        (torch.bool, "bool", "truth values"),
    ],
)  # fmt: skip
def test_whole_numbers_and_truth_values_are_no_weights_of_floating_point(
    dtype: torch.dtype, name: str, kind: str, tmp_path: Path
) -> None:
    save_file({**theirs(), "model.h.0.qkv": torch.ones(6, 12).to(dtype)}, tmp_path / "w.safetensors")
    with pytest.raises(RunError) as error:
        InitialWeights(tmp_path / "w.safetensors", OURS, NAMES)
    assert error.value.message == (
        f"`blocks[0].q.weight` is {name} in the file and f32 in the program: {kind} in place of floating-point numbers"
    )
    assert "tensor.to(torch.float32)" in error.value.help
    for wide in (torch.float64, torch.bfloat16, torch.float16):
        save_file({**theirs(), "model.h.0.qkv": torch.ones(6, 12).to(wide)}, tmp_path / "w.safetensors")
        InitialWeights(tmp_path / "w.safetensors", OURS, NAMES)


def test_a_record_of_words_that_nests_is_none(tmp_path: Path) -> None:
    save_file(theirs(), tmp_path / "w.safetensors", {"categories": "[" * 100_000})
    InitialWeights(tmp_path / "w.safetensors", OURS, NAMES).require_words({"a": "2 words"})


def test_weights_in_several_files(tmp_path: Path) -> None:
    tensors = theirs()
    first = {name: tensors.pop(name) for name in ("model.h.0.qkv", "scale")}
    save_file(first, tmp_path / "w-1-of-2.safetensors")
    save_file(tensors, tmp_path / "w-2-of-2.safetensors")
    weights = InitialWeights(tmp_path / "w-*.safetensors", OURS, NAMES)
    q = weights.read(OURS[0], block(OURS[0]), torch.float64)
    torch.testing.assert_close(q, first["model.h.0.qkv"].T.double()[:4])
    save_file({"scale": first["scale"]}, tmp_path / "w-3-of-2.safetensors")
    with pytest.raises(RunError, match="two of the files hold `scale`"):
        InitialWeights(tmp_path / "w-*.safetensors", OURS, NAMES)
    with pytest.raises(RunError, match="the weights are missing"):
        InitialWeights(tmp_path / "v-*.safetensors", OURS, NAMES)
