"""The arguments of a script -> the devices that its ranks take, and whether its limits are judged there.

On the CPU the scripts run in tiny sizes, so that they can be tried without a GPU; what they measure then says nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo  # before ranks are forked, each of which would else import it again
from ranks import Sides, forked, on_ranks
from timing import Timing, verdict

from shardlang.errors import RunError
from shardlang.runtime.device import KINDS
from shardlang.runtime.launch.devices import DeviceChoice, chosen

# Operations a second of dense products in 16 bits, by a part of the maker's name; from the makers' data sheets.
PEAKS = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12,
    "L40S": 362e12, "MI300X": 1307e12,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """The devices of a script. whole: they are GPUs, so sizes are those of the claim and its limits are judged."""

    devices: DeviceChoice
    turns: int

    @property
    def whole(self) -> bool:
        return self.devices.kind != "cpu"

    @property
    def compiler(self) -> str:
        """The backend of torch.compile: in tiny sizes one that needs no compiler and little time."""
        return "inductor" if self.whole else "eager"

    def peak(self) -> float:
        """Operations a second that a device could do at best; 0: unknown."""
        name = KINDS[self.devices.kind].model()
        return next((flops for part, flops in PEAKS.items() if part in name), 0.0)

    def forked(self, work: Callable[[], Any], ranks: int = 1) -> list[Any]:
        """What `work` gives on each of so many ranks, forked and connected."""
        return forked(ranks, lambda: self._alone(work), self.devices)

    def on_ranks(self, sides: Sides, ranks: int = 1, close: float = 1e-4) -> dict[str, Timing]:
        """Wall seconds of each side's turns; losses differ by at most `close`, relative."""
        return on_ranks(ranks, lambda: self._alone(sides), self.turns, self.devices, close)[0]

    def _alone(self, work: Callable[[], Any]) -> Any:
        """Threads would take longer to meet than tiny sizes take to compute."""
        if not self.whole:
            torch.set_num_threads(1)
        return work()

    def judged(self, label: str, values: Sequence[float], limit: float) -> bool:
        """Prints values against their limit; whether it holds, or is not judged here."""
        return verdict(label, values, limit, self.whole)


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """`--device` and `--turns`, and what else is given."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=KINDS, default="cuda")
    parser.add_argument("--turns", type=int, default=9)
    return parser.parse_known_args()


def place(ranks: int = 1) -> Place:
    """The devices for so many ranks, by the arguments of the command. Without a GPU a script ends with 2; without a
    second one what needs it is skipped.
    """
    given, _ = arguments()
    try:
        devices = chosen(given.device, ranks)
    except RunError as error:
        if ranks > 1:
            print(f"skipped: {error.message}")
            sys.exit(0)
        text = f"{error.message}; with `--device cpu` the scripts run in tiny sizes, and no limit is judged"
        print(text, file=sys.stderr)
        sys.exit(2)
    return Place(devices, given.turns if devices.kind != "cpu" else 1)
