"""The kinds of device that ranks compute on: how many there are here, how a rank takes one, what
its process groups are made of, and how values are copied to it.

No other module names a backend. Which kind a run takes is decided in launch/devices.py."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardlang.errors import RunError

HOST = torch.device("cpu")

# A collective may wait for a peer that loads data or compiles; a dead peer is noticed by the
# launcher, not by this.
TIMEOUT = datetime.timedelta(minutes=30)
# Seconds: ten days, whose milliseconds poll(2) can count.
_LONGEST = 864_000
# Set before torch's allocator has taken anything: segments grow, so that sizes which differ from
# time to time do not leave gaps that nothing fits.
_ALLOCATOR = "expandable_segments:True"
_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def expandable() -> bool:
    """Whether a GPU's allocator has segments that grow: not if the user's settings have none."""
    own = [os.environ[name] for name in _ALLOCATORS if name in os.environ]
    return not own or any(_ALLOCATOR in options for options in own)


class Timeout:
    """How long a collective of this process's groups may take before torch ends it."""

    collective = TIMEOUT

    @classmethod
    def outlast(cls, stall: float | None) -> None:
        """Makes it longer than --stall-timeout: who is to blame is said by who sees all ranks."""
        cls.collective = max(TIMEOUT, datetime.timedelta(seconds=min(_LONGEST, 2 * (stall or 0.0))))


class Cpu:
    """The host's memory and processors: as many ranks as are wanted. Groups are gloo's."""

    name, backend, noun = "cpu", "gloo", "CPU"
    # Whether messages of one group are told apart by tags; else they run one by one.
    tags = True
    # Batches that a thread makes while a step runs. On the CPU it would take a step's processor.
    batches_ahead = 0
    # Whether it computes while it sends, so that work is worth being put beside a collective.
    overlaps = False
    # Whether its memory is another than the host's.
    apart = False
    # Steps from one collection of Python's garbage to the next; 0: when Python itself wants one.
    # On a device each rank would have it in another step, and all others wait for that rank.
    collects = 0
    # Whether `peak_memory` is known.
    measures = False
    # Whether torch's flight recorder knows its collectives (launch/flight.py).
    recorded = False

    def count(self) -> int | None:
        """Devices of this kind that this process sees, each for one rank; None: as many ranks as
        are wanted."""
        return None

    def lack(self) -> str:
        """Why there can be none, whatever the machine has; "" where there may be some."""
        return ""

    def compiler_lack(self) -> str:
        """The part of this machine that torch.compile needs for this kind and that is missing; ""
        where nothing is."""
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            return f"a C++ compiler (`{os.environ.get('CXX', 'g++')}`)"
        return ""

    def device(self, number: int) -> torch.device:
        """The device with a number among those that this process sees."""
        return torch.device(self.name)

    def model(self) -> str:
        """The maker's name of the device."""
        return self.noun

    def driver(self) -> str:
        """The driver's version."""
        return f"kernel {os.uname().release}"

    def identity(self, device: torch.device) -> str:
        """A name that two ranks of one machine share only where they have taken the same device;
        "": never."""
        return ""

    def take(self, device: torch.device) -> dict[str, Any]:
        """Makes it this thread's own; what torch.distributed is to be told of it besides."""
        return {}

    def round_products(self, on: bool) -> None:
        """Whether products of f32, convolutions too, read their factors with 10 bits behind the
        point (TF32), where the device can."""

    def meet(self, store: dist.Store | None, rank: int, size: int, bound: Mapping[str, Any]) -> None:
        """Starts torch.distributed, where all ranks do. bound: what `take` gave."""
        dist.init_process_group(
            self.backend, store=store, rank=rank, world_size=size, timeout=Timeout.collective, **bound
        )

    def group(self, store: dist.Store, ranks: Sequence[int], at: int, name: str) -> Any:
        """A process group of `ranks`, ascending, in which this process is number `at`; all of them
        call it."""
        return dist.ProcessGroupGloo(store, at, len(ranks), Timeout.collective)

    def everyone(self) -> Any:
        """The process group of all ranks, once torch.distributed has been started."""
        return dist.group.WORLD

    def leave(self, group: Any) -> None:
        """Gives a group up."""

    def attention(self, dtype: torch.dtype) -> str:
        """The kernel for attention in a type, of those in functions/attention_kernels.py."""
        return "host"

    def peak_memory(self, device: torch.device) -> int:
        """The most bytes that tensors have held on a device at one time; 0: not counted."""
        return 0

    def moment(self) -> Any:
        """This point in the work that the device was given, for `between`."""
        return time.perf_counter()

    def between(self, begin: Any, end: Any) -> float:
        """Seconds that the device took from a moment to another; it may wait for that one."""
        return float(end - begin)

    def copied(self, x: Tensor, device: torch.device) -> Tensor:
        """`x`, of any device, on this one."""
        return x.to(device)

    def fetched(self, result: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A function that gives a result in the host's memory. result: gives it on a device, once
        it is there."""
        return result

    def leaving(self, x: Tensor) -> tuple[Tensor, Callable[[], None]]:
        """x on its way to the host's memory, and a function after which the device may use x's
        memory anew."""
        return x.to(HOST, non_blocking=True), lambda: None

    def coming(self, x: Tensor, device: torch.device) -> Callable[[], Tensor]:
        """A function that gives `x` of the host on a device, to which it is on its way."""
        there = x.to(device, non_blocking=True)
        return lambda: there

    def host_memory(self, like: Tensor) -> Tensor:
        """Memory of the host for a tensor's numbers, to which copies from a device are quick."""
        return torch.empty(like.shape, dtype=like.dtype)

    def bring(self, tensors: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Copies tensors to the host's memory, and waits until they are there."""
        for tensor, here in zip(tensors, into, strict=True):
            here.copy_(tensor)


class Cuda(Cpu):
    """NVIDIA's and AMD's GPUs, as torch.cuda has them. Groups are NCCL's (RCCL's)."""

    name, backend, noun, tags, batches_ahead = "cuda", "nccl", "GPU", False, 2
    overlaps = apart = measures = recorded = True
    collects = 50

    def __init__(self) -> None:
        self._streams: dict[tuple[torch.device, str], Any] = {}

    def count(self) -> int:
        return 0 if self.lack() else int(_in_child(torch.cuda.device_count))

    def lack(self) -> str:
        return "" if torch.backends.cuda.is_built() else "this torch is built without CUDA"

    def compiler_lack(self) -> str:
        from torch.utils._triton import has_triton_package

        return "" if has_triton_package() else "the package `triton`"

    def device(self, number: int) -> torch.device:
        return torch.device(self.name, number)

    def model(self) -> str:
        return _in_child(lambda: torch.cuda.get_device_name(0))

    def driver(self) -> str:
        version = torch.version
        return str(getattr(version, "cuda", None) or getattr(version, "hip", None) or super().driver())

    def identity(self, device: torch.device) -> str:
        return _in_child(lambda: torch.cuda.get_device_properties(device).uuid)

    def take(self, device: torch.device) -> dict[str, Any]:
        if not {*_ALLOCATORS} & os.environ.keys():
            torch._C._accelerator_setAllocatorSettings(_ALLOCATOR)
        torch.cuda.set_device(device)
        self.round_products(False)
        return {"device_id": device}

    def round_products(self, on: bool) -> None:
        # torch does in convolutions, by default, and does not in other products.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on

    def group(self, store: dist.Store, ranks: Sequence[int], at: int, name: str) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        # Names and global ranks are what torch's flight recorder tells a group by.
        options._timeout, options.group_name, options.global_ranks_in_group = Timeout.collective, name, list(ranks)
        made = dist.ProcessGroupNCCL(store, at, len(ranks), options)
        made._set_sequence_number_for_group()
        # Now, not in the first collective: that may be behind a receive which waits for a rank that
        # waits for this one.
        made.eager_connect_single_device(torch.device(self.name, torch.cuda.current_device()))
        return made

    def leave(self, group: Any) -> None:
        group.shutdown()

    def attention(self, dtype: torch.dtype) -> str:
        return "plain" if dtype == torch.float64 else "efficient"

    def peak_memory(self, device: torch.device) -> int:
        return int(torch.cuda.max_memory_allocated(device))

    def moment(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def copied(self, x: Tensor, device: torch.device) -> Tensor:
        """From page-locked memory on a stream of its own, so that it runs beside what the device
        was given before."""
        if x.device.type == self.name:
            return x.to(device)
        current = torch.cuda.current_stream(device)
        stream = self._stream(device, "given")
        with torch.cuda.stream(stream):
            there = x.contiguous().pin_memory().to(device, non_blocking=True)
        current.wait_stream(stream)
        there.record_stream(current)
        return there

    def fetched(self, result: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """On its way at once, so that the host waits for this result alone, not for all that the
        device was given."""
        stream = self._stream(torch.device(self.name, torch.cuda.current_device()), "figures")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            there = result()
            here = torch.empty(there.shape, dtype=there.dtype, pin_memory=True).copy_(there, non_blocking=True)
            there.record_stream(stream)
            done = stream.record_event()

        def found() -> Tensor:
            done.synchronize()
            return here

        return found

    def leaving(self, x: Tensor) -> tuple[Tensor, Callable[[], None]]:
        current, stream = torch.cuda.current_stream(x.device), self._stream(x.device, "saved")
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            here = self.host_memory(x).copy_(x, non_blocking=True)
            done = stream.record_event()
        return here, lambda: current.wait_event(done)

    def coming(self, x: Tensor, device: torch.device) -> Callable[[], Tensor]:
        """In memory that this stream takes and lets go, so that it is used anew at once."""
        current, stream = torch.cuda.current_stream(device), self._stream(device, "saved")
        there = torch.empty_like(x, device=device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            there.copy_(x, non_blocking=True)
            done = stream.record_event()

        def found() -> Tensor:
            torch.cuda.current_stream(device).wait_event(done)
            return there

        return found

    def host_memory(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def bring(self, tensors: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        for tensor, here in zip(tensors, into, strict=True):
            here.copy_(tensor, non_blocking=True)
        torch.cuda.current_stream().synchronize()

    def _stream(self, device: torch.device, use: str) -> Any:
        """The stream for copies of one use between host and device. Each has its own: what is given
        to the device, a batch made ahead, waits for nothing, and the others for what it
        computes."""
        if (device, use) not in self._streams:
            self._streams[device, use] = torch.cuda.Stream(device)
        return self._streams[device, use]


KINDS: dict[str, Cpu] = {kind.name: kind for kind in (Cpu(), Cuda())}


def kind_of(device: torch.device) -> Cpu:
    """The kind of a device."""
    return KINDS[device.type]


def used() -> str:
    """The use of a device here, in words, that a fork of this process could not go on with; ""
    where there was none."""
    return "used CUDA" if torch.cuda.is_initialized() else ""


def _in_child(asked: Callable[[], object]) -> str:
    """The answer of a forked process; RunError if it has none. Asked in this one, torch may start
    CUDA, which ranks that are forked later could then not use; where it has, this one answers."""
    if used():
        return str(asked())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = f"+{asked()}"
        except Exception as error:
            answer = f"-{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    if not found.startswith("+"):
        why = found[1:] or "the process that asked them died"
        raise RunError("SH503", f"the GPUs of this machine cannot be looked at: {why}", help="--device cpu")
    return found[1:]
