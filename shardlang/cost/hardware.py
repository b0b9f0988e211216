"""The `device` and `cluster` of a program -> `Hardware`: the numbers that the time model needs, and
what each rests on.

    described(program) -> Hardware | None                  what the file says (None: no device)
    missing(hardware, ranks) -> ((kind, name, setting),..) settings without which there is no time
    with_speeds(program, ranks, sink) -> Hardware | None   None after SH241, where some are missing

All numbers are in bytes, seconds, bytes/s and FLOP/s. 0 stands for a number that nobody said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final

from shardlang.check.program import CheckedProgram
from shardlang.check.train.hardware import SETTINGS
from shardlang.cost.overlap import Overlap, emitted
from shardlang.cost.profile import Profile, Wrong, read_profile
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.sources.files import Files, Unreadable
from shardlang.syntax import ast

MEASURED, DATA_SHEET, DEFAULT = "measured", "data sheet", "default"
# Without tensor cores f32 has a sixteenth of the dense bf16 rate: A100 19.5 of 312, H100 67 of 989
# TFLOP/s (NVIDIA's data sheets). torch computes f32 products so unless it is told to round them.
_F32_OF_16_BITS: Final = 1 / 16
# With them it has half of that rate: 156 of 312, 494.7 of 989 TFLOP/s (the same).
_TF32_OF_16_BITS: Final = 1 / 2
_NEEDED_FOR_ONE: Final = ("compute", "bandwidth")


@dataclass(frozen=True, slots=True)
class Shares:
    """The share of a data sheet's rate that is reached where nothing was measured: of the peak by
    products and attention (forward, backward), of the memory's bandwidth by streaming operators, of
    the links by collectives. `beside`: how much slower compute is beside a collective."""

    product: float = 0.6
    attention: float = 0.5
    attention_backward: float = 0.42
    stream: float = 0.85
    link: float = 0.78
    network: float = 0.85
    beside: float = 1.1


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the network beyond a node: a block of `ranks` ranks, in which each has
    1/`oversubscription` of its network rate when all send at once."""

    name: str
    ranks: int
    oversubscription: float = 1.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """The abilities of a rank's device, its node and the network.

    memory, reserved: bytes of a device, and those that its context and libraries take. compute,
    compute_f32, compute_f8: dense FLOP/s in 16, 32 and 8 bits. bandwidth: of the device's memory.
    link: of a device within its node in one direction, half of what the data sheet says.
    devices: in a node; nodes: 0 for as many as it takes. network: of each device in one direction.
    host: of a copy between device and host memory. levels: of the network, innermost first.
    launch: seconds from one kernel to the next; step: of a step beside its operators; meeting: that
    the emitted program adds to a collective; base: of a collective before its first hop (NCCL's
    src/graph/tuning.cc, ring, simple protocol). units:
    streaming multiprocessors. profile: what was measured, which comes before all that is worked
    out. origins: field -> measured, data sheet or default."""

    device: str
    cluster: str = ""
    memory: float = 0.0
    reserved: float = 0.0
    compute: float = 0.0
    compute_f32: float = 0.0
    compute_f8: float = 0.0
    bandwidth: float = 0.0
    link: float = 0.0
    link_latency: float = 5e-6
    devices: int = 1
    nodes: int = 0
    network: float = 0.0
    network_latency: float = 5e-6
    levels: tuple[Level, ...] = ()
    host: float = 25e9
    launch: float = 4e-6
    step: float = 0.0
    meeting: float = 0.0
    base: float = 8.4e-6
    units: int = 128
    shares: Shares = field(default_factory=Shares)
    profile: Profile | None = None
    origins: tuple[tuple[str, str], ...] = ()

    @property
    def overlap(self) -> Overlap:
        """The overlaps of an emitted program on this device."""
        return emitted(self.profile is None or self.profile.asynchronous)

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s in a dtype at best; f64 at half the rate of f32."""
        if dtype == "f64":
            return self.compute_f32 / 2
        return {"f32": self.compute_f32, "f8": self.compute_f8}.get(dtype, self.compute)

    def origin(self, name: str) -> str:
        """The source of a field's number: `measured`, `data sheet` or `default`."""
        return dict(self.origins).get(name, DEFAULT)


# Setting -> field of Hardware, and what it is multiplied by.
_OF_DEVICE: Mapping[str, tuple[str, float]] = {
    "memory": ("memory", 1.0), "reserved": ("reserved", 1.0), "bandwidth": ("bandwidth", 1.0),
    "compute": ("compute", 1.0), "compute_f32": ("compute_f32", 1.0), "compute_f8": ("compute_f8", 1.0),
    "link": ("link", 0.5), "latency": ("link_latency", 1.0),
}  # fmt: skip
_OF_CLUSTER: Mapping[str, tuple[str, float]] = {
    "network": ("network", 1.0), "latency": ("network_latency", 1.0)
}  # fmt: skip


def described(program: CheckedProgram, sink: Sink | None = None) -> Hardware | None:
    """The hardware that a program is planned for: the first cluster of the file with its device, or
    the one that `--cluster` names; without a cluster the first device, of which one node has all
    ranks. None where there is none, and after SH242: the profile cannot be read."""
    machine = program.machine
    if machine is None or machine.device is None:
        return None
    device, around = machine.device, machine.cluster
    found: dict[str, Any] = _numbers(_settings(device), _OF_DEVICE)
    if around is not None:
        said = _settings(around)
        found |= _numbers(said, _OF_CLUSTER)
        found |= {n: v.value for n in ("nodes", "devices") if isinstance(v := said.get(n), ast.Number)}
    origins = tuple((name, DATA_SHEET) for name in found)
    compute = found.get("compute", 0.0)
    found = {"compute_f32": compute * _F32_OF_16_BITS, "compute_f8": compute, "devices": 0, **found}
    if program.training is not None and program.training.precision == "tf32":
        found["compute_f32"] = max(found["compute_f32"], compute * _TF32_OF_16_BITS)
    base = Hardware(device.name.text, around.name.text if around else "", origins=origins)
    return _profiled(replace(base, **found, levels=tuple(map(_level, around.levels)) if around else ()), device, sink)


def _profiled(hardware: Hardware, device: ast.Hardware, sink: Sink | None) -> Hardware | None:
    """With the profile that the device names."""
    named = _settings(device).get("profile")
    if not isinstance(named, ast.String):
        return hardware
    source = Files().load(named.span.source.name, named.value, True)
    try:
        if isinstance(source, Unreadable):
            raise Wrong(f"the file {source}")
        profile = read_profile(source.text)
        if profile.device != hardware.device:
            raise Wrong(f"it is of `{profile.device}`, and the device is `{hardware.device}`")
    except Wrong as wrong:
        help = "`shardc calibrate -o machine.shard` writes the profile of this machine, and the `device` that names it"
        if sink is not None:
            sink.report("SH242", f"profile `{named.value}` cannot be used: {wrong}", named.span, help=help)
        return None
    shares = replace(hardware.shares, beside=profile.beside)
    measured = tuple((name, MEASURED) for name in ("launch", "step", "meeting", "beside"))
    return replace(
        hardware, launch=profile.launch, step=profile.step, meeting=profile.meeting, shares=shares, profile=profile,
        origins=(*hardware.origins, *measured),
    )  # fmt: skip


def _level(level: ast.Hardware) -> Level:
    said = {name: value.value for name, value in _settings(level).items() if isinstance(value, ast.Number)}
    return Level(level.name.text, int(said["ranks"]), float(said.get("oversubscription", 1.0)))


def _settings(hardware: ast.Hardware) -> dict[str, ast.Expr]:
    return {s.name.text: s.value for s in hardware.settings}


def _numbers(said: Mapping[str, ast.Expr], known: Mapping[str, tuple[str, float]]) -> dict[str, Any]:
    return {
        name: float(value.value) * times
        for setting, (name, times) in known.items()
        if isinstance(value := said.get(setting), ast.Number)
    }


def of_gpus(program: CheckedProgram) -> bool:
    """Whether the file describes a device that computes beside its host, as GPUs do: one of a data
    sheet, or measured as such."""
    found = described(program)
    return found is not None and (found.profile is None or found.profile.asynchronous)


def hosts_of(program: CheckedProgram, ranks: int) -> tuple[int, str]:
    """How many hosts so many ranks need on the file's cluster, and its name; (1, "") where it says
    nothing, or hosts would have unequal numbers of them."""
    found = described(program)
    if found is None or not 0 < found.devices < ranks or ranks % found.devices:
        return 1, ""
    return ranks // found.devices, found.cluster


def missing(hardware: Hardware, ranks: int) -> tuple[tuple[str, str, str], ...]:
    """The settings that a time on so many ranks needs and the file does not have: (`device` or
    `cluster`, its name, the setting)."""
    lacking = [name for name in _NEEDED_FOR_ONE if not getattr(hardware, name)]
    if ranks > 1 and hardware.devices != 1 and not hardware.link:
        lacking.append("link")
    found = [("device", hardware.device, name) for name in lacking]
    if hardware.cluster and not hardware.devices:
        found.append(("cluster", hardware.cluster, "devices"))
    if 0 < hardware.devices < ranks and not hardware.network:
        found.append(("cluster", hardware.cluster, "network"))
    return tuple(found)


def with_speeds(program: CheckedProgram, ranks: int, sink: Sink) -> Hardware | None:
    """The hardware of a program whose time on so many ranks is asked for; SH241 and None where the
    file does not have all that a time needs."""
    before = len(sink.found)
    hardware, machine = described(program, sink), program.machine
    if len(sink.found) > before:
        return None
    around = machine.cluster if machine is not None else None
    if hardware is None or machine is None:
        home = around.name.text if around is not None else program.source.name
        help = "name a cluster, such as `--cluster std.clusters.h100_pod`, or import one: `use std.clusters: h100_pod`"
        fact = f"`{home}` names no device, so there is no time of a step"
        sink.report("SH241", fact, around.name.span if around is not None else None, help=help)
        return None
    lacking = missing(hardware, ranks)
    if not lacking:
        return hardware
    places = {"device": machine.device, "cluster": around}
    spans = list(dict.fromkeys(node.name.span for kind, _, _ in lacking if (node := places[kind]) is not None))
    said = " and ".join(f"{kind} `{name}` has no `{setting}`" for kind, name, setting in lacking)
    offers = [
        f"write `{setting} = {SETTINGS[kind][setting].example}`, say, in `{name}`" for kind, name, setting in lacking
    ]
    fact = f"the time of a step on {ranks} rank{'s' if ranks > 1 else ''} needs more: {said}"
    sink.report("SH241", fact, spans[0], labels=[(span, "and here") for span in spans[1:]], help=offers)
    return None
