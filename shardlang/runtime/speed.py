"""The work of a step and its seconds -> what a run shows of its speed: tokens a second, the share
of the devices' peak, memory beside the plan's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# From this share on the memory of a rank is told to be far from its plan's.
_FAR = 0.05


@dataclass(frozen=True)
class Work:
    """The work of a step, of all ranks together, for what a run shows of its speed.

    tokens: 0 if the data is not counted in tokens. flops: floating-point operations of the model's
    products, forward and backward. peak: operations a second of a rank's device at best. memory:
    bytes that the plan counts on a device, by coordinate along the axis of stages. 0, (): unknown.
    """

    tokens: int = 0
    flops: int = 0
    peak: int = 0
    memory: tuple[int, ...] = ()


@dataclass(frozen=True)
class Speed:
    """How fast steps are, from the seconds of one. ranks: those that share its work. memory: the
    most bytes that this rank has held on its device so far; 0: unknown. planned: what its plan
    counts there."""

    examples: int
    work: Work = field(default_factory=Work)
    ranks: int = 1
    memory: Callable[[], int] = int
    planned: int = 0

    def figures(self, seconds: float) -> dict[str, float]:
        """For the figures of a step: tokens a second, the share of the devices' peak, bytes."""
        found: dict[str, float] = {}
        if self.work.tokens:
            found["tokens_per_s"] = round(self.work.tokens / max(seconds, 1e-9), 1)
        if used := self.memory():
            # What a device is planned to do at best is no measure of the host's processors.
            found["peak_bytes"] = used
            if self.work.peak:
                found["mfu"] = round(self.work.flops / (max(seconds, 1e-9) * self.ranks * self.work.peak), 4)
        return found

    def compared(self, exchanged: Callable[[int], list[int]]) -> Iterator[str]:
        """A line about the memory of all ranks beside their plans, where it is far from these.
        exchanged: one rank's number -> those of all."""
        held, planned = exchanged(self.memory()), exchanged(self.planned)
        known = [rank for rank, most in enumerate(held) if most and planned[rank]]
        if not known:
            return
        rank = max(known, key=lambda at: abs(held[at] / planned[at] - 1))
        share = held[rank] / planned[rank] - 1
        if abs(share) > _FAR:
            yield (
                f"rank {rank} held {held[rank] / 1e9:.2f} GB at most, and the plan counts "
                f"{planned[rank] / 1e9:.2f} GB: {100 * abs(share):.0f} % {'more' if share > 0 else 'less'}"
            )

    def shown(self, seconds: float) -> str:
        """The same for the line that a person sees."""
        found = self.figures(seconds)
        words = [f"{self.examples / max(seconds, 1e-9):,.0f} examples/s"]
        if "tokens_per_s" in found:
            words = [f"{found['tokens_per_s']:,.0f} tokens/s"]
        if "mfu" in found:
            words.append(f"{100 * found['mfu']:.1f} % MFU")
        if "peak_bytes" in found:
            planned = f" of {self.planned / 1e9:.1f}" if self.planned else ""
            words.append(f"{found['peak_bytes'] / 1e9:.1f}{planned} GB")
        return "  ".join(words)
