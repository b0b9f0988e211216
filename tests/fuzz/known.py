"""Small files that once took minutes and gigabytes, each as a command."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz.case import Case
from tests.fuzz.large import DATA, TRAIN, deep, program

AXES = "  mesh " + ", ".join(f"a{i} = 2" for i in range(17)) + "\n"
TEN = (
    "k0, k1, k2, k3@(a14, a9, a5, a11, a0, a1), k4@a8, k5@a10, k6@(a4, a7), k7@(a2, a6, a15), k8, k9@(a3, a16, a12)",
    "k0@a2, k1@(a14, a6), k2@a8, k3@a11, k4, k5, k6@a0, k7@(a15, a5, a12, a3, a7), k8@(a16, a1), k9@(a10, a4, a13)",
    "k0, k1, k2@(a5, a16), k3@(a2, a3, a4, a7, a6, a14, a12), k4@a1, k5@(a13, a9), k6@(a8, a0, a15), k7@a10, k8@a11, "
    "k9",
    "k0, k1, k2@(a9, a14), k3, k4, k5@(a3, a4, a7), k6@(a10, a2, a0), k7@a6, k8@(a16, a5, a11), k9@a13",
    "k0, k1@(a0, a16), k2, k3@(a15, a9, a14, a6, a1, a2), k4, k5@(a12, a8, a3, a4), k6, k7@a10, k8, k9@(a7, a11, a5)",
    "k0, k1@a3, k2, k3, k4@(a5, a10, a8), k5@(a0, a7, a9), k6@a13, k7@(a15, a11, a16), k8, k9@(a2, a4)",
)
TWO = (
    "batch@(a15, a6, a0, a10, a12, a8, a16, a13, a14), d@(a5, a1, a3, a11, a4, a2, a7, a9)",
    "batch@(a0, a9, a14, a3, a16), d@(a11, a7, a6, a10, a12, a4, a15, a5, a13, a8, a1, a2)",
)
PIPELINE = '  mesh pp = 256\n  stages over pp balanced\n  microbatches 512\n  schedule "{}"\n'
MILLION = 2**20


def _case(text: str, *argv: str, names: str = "") -> Case:
    files = {"n.map": names.encode()} if names else {}
    return Case("large", text.encode(), argv=(argv[0], "main.shard", *argv[1:]), files=files)


def _pins(layouts: tuple[str, ...]) -> str:
    return AXES + "".join(f"  at h{i}: [{layout}]\n" for i, layout in enumerate(layouts))


def _ten() -> str:
    """A parameter of ten dims, six statements, seventeen axes in another order in each."""
    names = [f"k{i}" for i in range(10)]
    body = (
        "".join(f"    h{i} = {f'relu(h{i - 1})' if i else 'v * 2'}\n" for i in range(6)) + "    y = x * w + sum(h5)\n"
    )
    members = f"  param w: [d] = ones()\n  param v: [{', '.join(names)}] = ones()\n"
    dims = "batch = 4096, d = 4096, " + ", ".join(f"{name} = 4096" for name in names)
    return program(body, members, rules=_pins(TEN), dims=dims)


def _two() -> str:
    body = "    h0 = x * w\n    h1 = relu(h0)\n    y = tanh(h1)\n"
    return program(body, rules=_pins(TWO), dims="batch = 131072, d = 131072")


def _staged(schedule: str) -> str:
    return deep(1024, PIPELINE.format(schedule)).replace("batch = 8", "batch = 131072")


def unknown(line: str, times: int) -> str:
    """A line that has a mistake, with another name each time."""
    return program("".join(line.format(i=i) for i in range(times)) + "    y = x * w\n")


def selectors(rule: str, times: int, layers: int) -> str:
    return deep(layers, DATA + "".join(rule.format(i=i) for i in range(times)))


def mapped(times: int) -> Case:
    lines = "a[*].w = b.*.w\n" + "".join(f"q{i}*? = b*\n" for i in range(times))
    init = '  init = safetensors("x.safetensors", names = "n.map")\n  steps'
    return _case(deep(14_000, train=TRAIN.replace("  steps", init)), "check", "--ranks", "2", names=lines)


def _million(rules: str, batch: int = 4 * MILLION) -> Case:
    text = program(rules=rules, dims=f"batch = {batch}, d = {MILLION}")
    return _case(text, "plan", "--ranks", str(MILLION))


KNOWN: Mapping[str, Case] = {
    "ten dims, seventeen axes": _case(_ten(), "check", "--ranks", "131072"),
    "two dims, seventeen axes": _case(_two(), "check", "--ranks", "131072"),
    "256 stages, 512 microbatches": _case(_staged("1f1b"), "check", "--ranks", "256"),
    "256 stages, 512 microbatches, planned": _case(_staged("1f1b"), "plan", "--ranks", "256"),
    "unknown values": _case(unknown("    v{i} = relu(xq{i})\n", 4_000), "check"),
    "unknown operators": _case(unknown("    v{i} = reluu{i}(x)\n", 4_000), "check"),
    "selectors of nothing": _case(selectors("  at b[{i}].q{i}: recompute\n", 50, 14_000), "check"),
    "selectors of single layers": _case(selectors("  at a[{i}]: recompute\n", 300, 14_000), "check"),
    "selectors of all layers": _case(selectors("  at a[*]: recompute\n", 4_000, 4_000), "check"),
    "a map of nothing": mapped(3_000),
    "a million ranks": _million(
        "  mesh dp = auto, tp = 1024\n  split batch over dp\n  split d over tp\n  zero 3 over dp\n"
    ),
    "a million ranks, cut unevenly": _million("  mesh dp = auto\n  split batch over dp uneven\n", 4 * MILLION + 1),
}
