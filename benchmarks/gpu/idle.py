"""Claim: in 20 steps of compiled Llama and GPT-2 with dropout a GPU is idle for at most 3 % of the time.

One GPU, bf16, the sizes of `llama_one` and `gpt2_dropout`. The time is from the first kernel to the last, by
torch.profiler; it is idle where no kernel runs, on whatever stream, and no memory is filled: copies are no work.

    python -m benchmarks.gpu.idle [--device cpu]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.nets import Net, gpt2_124m, llama_8b
from benchmarks.gpu.place import place


def share_between(spans: Iterable[tuple[float, float]]) -> float:
    """The share of the time from the first start to the last end that no span covers."""
    ordered = sorted(spans)
    first = end = ordered[0][0]
    gaps = 0.0
    for start, stop in ordered:
        gaps += max(0.0, start - end)
        end = max(end, stop)
    return gaps / (end - first)


def idle(net: Net) -> float:
    """The idle share of a turn, once all is compiled."""
    whole = net.place.whole
    turn = net.ours(whole)  # on the CPU other scripts compile the same nets
    turn()
    turn()
    with profile(activities=[ProfilerActivity.CUDA if whole else ProfilerActivity.CPU]) as seen:
        turn()
    kind = DeviceType.CUDA if whole else DeviceType.CPU
    events = [event for event in seen.events() if event.device_type == kind and not event.is_user_annotation]
    return share_between((e.time_range.start, e.time_range.end) for e in events if not e.name.startswith("Memcpy"))


def main() -> int:
    here = place()
    epochs = 10 if here.whole else 1
    held = []
    for net in (llama_8b(here, epochs=epochs), gpt2_124m(here, dropout=0.1, epochs=epochs)):
        (share,) = here.forked(lambda net=net: idle(net))
        held.append(here.judged(f"{net.name}, compiled: idle share of {net.steps} steps", [share], 0.03))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
