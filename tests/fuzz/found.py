"""What fuzzing found, each the smallest input, and what is reported of it now. `None`: anything, within the bounds."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import extremes
from tests.fuzz.case import Case, Link
from tests.fuzz.known import KNOWN
from tests.fuzz.mutate import ROOT

STRATEGY = "strategy s {\n  mesh a = auto\n  split batch over a uneven\n}\n"


def _case(text: str, ranks: int | None = None, overrides: Mapping[str, str] | None = None) -> Case:
    return Case("found", text.encode("utf-8", "surrogatepass"), ranks, overrides=overrides or {})


def _identities(n: int) -> str:
    """Functions that call each other twice, and no operator in any of them."""
    more = "".join(f"fn f{i}(x: [batch, d]) {{\n  return f{i - 1}(f{i - 1}(x))\n}}\n" for i in range(1, n))
    return extremes.model(f"    y = f{n - 1}(x) * w\n", more="fn f0(x: [batch, d]) {\n  return x\n}\n" + more)


STAGES = """
use std.nn: Linear
dim batch = 9223372036854775807, pixels = 16, classes = 8
model Net(d: dim = 32) {
  layer up = Linear(pixels, d)
  layer hidden[2] = Linear(d, d)
  layer down = Linear(d, classes)
  forward(image: [batch, pixels]) -> [batch, classes] { return image |> up |> hidden |> down }
}
strategy s {
  mesh pp = 4
  stages over pp balanced
  microbatches 2
  schedule "1f1b"
}
train {
  model = Net()
  data = random(image: [batch, pixels], label: i64[batch] < 8, batches = 4, seed = 1)
  loss = cross_entropy(model(image), label)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def _again_and_again(times: int) -> str:
    """A program that binds one name to one large call many times."""
    call = '  data = tokens("*.bin", batch = batch, seq = seq)\n  logits = model(tokens)\n'
    return (
        "use std.llama: Llama\ndim batch = 8, seq = 64\ntrain {\n"
        "  model = Llama(vocab = 128, d = 64, heads = 4, kv_heads = 2, ffn = 128, layers = 32)\n"
        + call * times
        + "  loss = cross_entropy(logits, label)\n  optimizer = sgd(lr = 0.1)\n  steps = 1\n}\n"
    )


# A folder of a name that no encoding has.
OUT = ("compile", "main.shard", "--ranks", "1", "-o", "\udcff")
LONG = "n" * 5_000

FOUND: Mapping[str, tuple[Case, tuple[str, ...] | None]] = {
    "a line end that is none": (
        _case("dim a\u0085b = 2\n"),
        ("SH104: U+0085 (a control character) is no letter or sign of the language",),
    ),
    "a space that is none": (
        _case("dim a\u00a0= 2\n"),
        ("SH104: U+00A0 (no-break space) is no letter or sign of the language",),
    ),
    "a long name": (_case(f"dim a = {LONG}\n"), (f"SH200: there is no `{'n' * 80}...{'n' * 30}` here",)),
    "a long path to set": (_case("dim a = 2\n", overrides={LONG: "2"}), None),
    "a long value to set": (_case("dim a = 2\n", overrides={"a": "-" * 300 + "2"}), None),
    "a long import": (_case(f'use "{"x" * 5_000}": A\n'), None),
    "a quote of two lines": (
        _case("dim a = (1 /\n  3)\n"),
        ("SH212: the size of dim `a` must be a whole number, and `(1 / 3)` is 1 / 3",),
    ),
    "many lines of documentation": (_case("## doc\n" * 60_000 + "dim a = 2\n"), ()),
    "a chain of conditions": (_case(extremes._else_ifs(6_000)), None),
    "ranks without number, cut unevenly": (
        _case(extremes.model("    y = x * w\n") + STRATEGY, 10**30),
        (f"SH303: {10**30} ranks are more than a plan can be for",),
    ),
    "many ranks, cut unevenly": (
        _case(extremes.model("    y = x * w\n").replace("batch = 8", "batch = 1_000_001") + STRATEGY, 131_072),
        None,
    ),
    "ranks without number": (_case(extremes.model("    y = x * w\n") + STRATEGY.replace(" uneven", ""), 10**12), None),
    "functions that double": (_case(extremes._doubling_functions(60)), None),
    "functions that double and do nothing": (_case(_identities(60)), None),
    "dims that double": (_case(extremes._doubling_dims(40)), None),
    "layers that double": (_case(extremes._doubling(20)), None),
    "layers of layers": (_case(extremes._nested_arrays(100_000)), None),
    "a million layers": (_case(extremes._arrays(1_000_000)), None),
    "a link that leads to itself": (
        Case("found", b"", argv=("run", "self.shard", "--ranks", "2"), files={"self.shard": Link("self.shard")}),
        None,
    ),
    "a name that is no UTF-8": (
        Case("found", b"", argv=("fmt", "\udcff.shard"), files={"\udcff.shard": b"dim  a = 2\n"}),
        None,
    ),
    "a folder that is no UTF-8": (
        Case("found", extremes.model("    y = x * w\n").encode(), argv=OUT),
        None,
    ),
    "stages over an axis that is not there, and a split over it": (
        _case(extremes.strategy("  mesh a = 2\n  split batch over (a, z)\n  stages over z balanced\n"), 2),
        ("SH306: the mesh has no axis `z`", "SH306: the mesh has no axis `z`"),
    ),
    "a file that cannot be read from": (
        Case("found", b"dim a = 2\n", argv=("check", "mem"), files={"mem": Link("/proc/self/mem")}),
        None,
    ),
    "microbatches of a batch without number": (_case(STAGES, 8), None),
    "a line end within a comment": (_case("dim a = 2\n##b\rc\ndim d = 2\n"), None),
    "an import of a name that no file has": (
        _case('use "a\0b.shard": X\ndim a = 2\n'),
        ("SH104: U+0000 (a control character) stands in a string, and no path can hold it",),
    ),
    "a string of unknown escapes": (
        _case('use "' + "\\q" * 10_000 + '": X\n'),
        ("SH117: `\\q` is not an escape, nor 9,999 others of this string",),
    ),
    "a schedule with millions of passes": (
        _case(STAGES.replace("microbatches 2", f"microbatches {2**20}"), 8),
        ("SH443: 4 stages with 1,048,576 microbatches make 8,388,608 passes, and a schedule has at most 500,000",),
    ),
    "more stages than there are numbers for": (
        _case(STAGES.replace("balanced", f"balanced, virtual = {2**32}"), 8),
        (f"SH420: `virtual` is {2**32}, and no program has as many layers",),
    ),
    "as many without a schedule": (
        _case(STAGES.replace("balanced", f"balanced, virtual = {2**31}").replace('  schedule "1f1b"\n', ""), 8),
        (f"SH420: `virtual` is {2**31}, and no program has as many layers",),
    ),
    "a dim of nearly 2^63 that no layer can divide": (
        _case((ROOT / "examples/llama.shard").read_text().replace("seq = 8192", f"seq = {2**63 - 1}"), 4),
        None,
    ),
    "a pattern of many parts": (
        _case(f"strategy s {{\n  at {'*a' * 20_000}: recompute\n}}\n"),
        None,
    ),
    "a large model called by one name again and again": (_case(_again_and_again(40)), None),
    **{name: (case, None) for name, case in KNOWN.items()},
}  # fmt: skip
