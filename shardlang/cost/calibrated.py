"""The measurements of a machine -> the text of its profile, and of the file with its `device` and
its `cluster`.

The seconds that an emitted program adds to each kernel and to each step come from small programs:
their steps are almost nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shardlang.cost.hardware import Hardware
from shardlang.cost.predict import predict_work
from shardlang.cost.profile import FORMAT, Profile, read_profile
from shardlang.cost.work import Workload
from shardlang.ops.declaration import Operator

# A launch that is longer than any kernel of a small program, to count these by.
_LONG: Final = 1.0
_PARTS: Final = (
    "model", "driver", "torch", "products", "attention", "streams", "updates", "collectives", "copies",
)  # fmt: skip


def profile_of(found: Mapping[str, Any], name: str, small: Mapping[str, Workload]) -> str:
    """The text of the profile. found: what was measured; name: of the `device`; small: the work of
    the programs whose steps were timed."""
    made = {"format": FORMAT, "device": name, **{part: found[part] for part in _PARTS}}
    made["asynchronous"] = found["device"] != "cpu"
    made["memory"] = {"context": found["reserved"]}
    if "expandable_segments" in found:
        made["expandable_segments"] = found["expandable_segments"]
    launch, step = constants(found["steps"], small, read_profile(json.dumps(made)))
    made |= {"launch": _rounded(launch * 1e6), "step": _rounded(step * 1e6)}
    if found.get("together"):
        made |= {"beside": _rounded(found["beside"])}
        made |= {"meeting": _rounded(meeting(found["together"], small, read_profile(json.dumps(made))) * 1e6)}
    return json.dumps(made) + "\n"


def calls_of(operators: Iterable[Operator]) -> dict[str, tuple[str, ...]]:
    """Operators that stream through memory, by name: torch's function, then its arguments, `x` for
    numbers, `i` for indices of their rows, `over` for their last dim. Without those that take more
    and those that torch has no function of."""
    found = {}
    for operator in operators:
        kinds = [param.kind for param in operator.params if param.required]
        tensors = kinds.count("tensor")
        if operator.internal or operator.in_torch is None:
            continue
        if not operator.differentiable or operator.product is not None:
            continue
        if kinds[tensors:] in ([], ["dims"]) and tensors in (1, 2):
            indices = operator.indexes.numbers if operator.indexes is not None else -1
            words = ["i" if at == indices else "x" for at in range(tensors)]
            found[operator.name] = (operator.in_torch or operator.name, *words, *["over"] * (len(kinds) > tensors))
    return found


def constants(steps: Mapping[str, float], small: Mapping[str, Workload], profile: Profile) -> tuple[float, float]:
    """Seconds of a launch, and of a step beside its operators: with them the predicted steps of
    small programs are nearest to the measured ones (microseconds), relative to these, by least
    squares.

    A step is P + n launch + step with n kernels; P, the kernels themselves, is 0 on a device that
    works while more is launched."""
    nn = n = one = nt = t = 0.0
    for name, us in steps.items():
        kernels = 0.0 if profile.asynchronous else _step(small[name], profile, 0.0)
        count = (_step(small[name], profile, _LONG) - kernels) / _LONG
        left, weight = us / 1e6 - kernels, 1 / us**2
        nn, n, one = nn + weight * count * count, n + weight * count, one + weight
        nt, t = nt + weight * count * left, t + weight * left
    spread = nn * one - n * n
    launch = max(0.0, (nt * one - n * t) / spread if spread > 1e-9 * nn * one else nt / nn)
    return launch, max(0.0, (t - n * launch) / one)


def meeting(steps: Mapping[str, float], small: Mapping[str, Workload], profile: Profile) -> float:
    """Seconds that an emitted program adds to a collective, beside those of the collective by
    itself: its call, the ranks' wait for each other, and the wake-up of the threads that send.

    As `constants`, of small programs on several ranks: with it their predicted steps are nearest to
    the measured ones, relative to these."""
    ct = cc = 0.0
    for name, us in steps.items():
        without = _step(small[name], profile, profile.launch, profile.step)
        count = (_step(small[name], profile, profile.launch, profile.step, _LONG) - without) / _LONG
        weight = 1 / us**2
        ct, cc = ct + weight * count * (us / 1e6 - without), cc + weight * count * count
    return max(0.0, ct / cc) if cc else 0.0


def _step(work: Workload, profile: Profile, launch: float, step: float = 0.0, meeting: float = 0.0) -> float:
    """The predicted step on a device with these curves."""
    bare = Hardware(profile.device, compute=1e12, compute_f32=1e12, bandwidth=1e12, link=1e12, devices=0,
                    launch=launch, step=step, meeting=meeting, profile=profile)  # fmt: skip
    return predict_work(work, bare).step_s


def machine_of(found: Mapping[str, Any], name: str, profile_name: str, ranks: int) -> str:
    """The text of the file: a `device`, and a `cluster` of one node with it."""
    rates = {dtype: best_rate(grid) for dtype, grid in found["products"].items()}
    settings = {"memory": _quantity(found["memory"], "B")}
    if found["reserved"]:
        settings["reserved"] = _quantity(found["reserved"], "B")
    settings["compute"] = _quantity(rates.get("bf16", rates["f32"]), "FLOP/s")
    settings["compute_f32"] = _quantity(rates["f32"], "FLOP/s")
    size, us = found["streams"][""][-1]
    settings["bandwidth"] = _quantity(size / us * 1e6, "B/s")
    if ranks > 1:
        points = next(row["points"] for row in found["collectives"] if row["kind"] == "send")
        size, us = points[-1]
        settings["link"] = _quantity(2 * size / us * 1e6, "B/s")
        settings["latency"] = f"{_rounded(points[0][1]):g}us"
    settings["profile"] = json.dumps(profile_name)
    threads = f", {found['threads']} thread{'s' * (found['threads'] > 1)} a rank" if found["device"] == "cpu" else ""
    told = f"{found['model']}, torch {found['torch']}, {ranks} rank{'s' * (ranks > 1)}{threads}"
    return (
        f"## Measured by `shardc calibrate`: {told}.\n\n{_block('device', name, settings)}\n"
        f"{_block('cluster', 'machine', {'device': name, 'nodes': '1', 'devices': str(ranks)})}"
    )


def best_rate(grid: Mapping[str, Sequence[float]]) -> float:
    """The most operations a second of a grid's products."""
    sizes = [(m, n, k) for m in grid["m"] for n in grid["n"] for k in grid["k"]]
    return max(2 * math.prod(size) / us * 1e6 for size, us in zip(sizes, grid["us"], strict=True))


def _block(keyword: str, name: str, settings: Mapping[str, str]) -> str:
    lines = "".join(f"  {setting} = {value}\n" for setting, value in settings.items())
    return f"{keyword} {name} {{\n{lines}}}\n"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _quantity(value: float, unit: str) -> str:
    """`52.31GFLOP/s`: four digits and the prefix that fits."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{_rounded(value / factor):g}{prefix}{unit}"
    return f"{_rounded(value):g}{unit}"
