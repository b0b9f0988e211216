"""Faults of runs on devices: limits of time, times of steps, garbage, numbers that operators make."""

from __future__ import annotations

from tests.mutants.fault import Fault

STALLS = ("runtime/test_stalls.py",)
GARBAGE = ("runtime/test_garbage.py",)
FLIGHT = ("device/test_flight.py",)
STREAMS = ("device/test_streams.py",)
DEVICE = ("device/test_device.py",)

FAULTS = (
    Fault("a process that reads ahead computes with several threads", "an evaluation of examples that torch computes",
          "runtime/data/workers.py", "    torch.set_num_threads(1)\n", "", ("extensions/test_data.py",)),
    Fault("a fork waits for threads that it has not", "one rank after sums over several threads",
          "runtime/launch/children.py", "    for pause in _pauses():", "    for pause in ():",
          ("bind/test_new_processes.py",)),
    Fault("a first step on a device has a minute", "long first steps", "runtime/launch/stalls.py",
          "limit = max(limit, FIRST)", "limit = max(limit, LEAST)", STALLS),
    Fault("ranks of the CPU wait ten minutes too", "ranks that all wait", "runtime/launch/stalls.py",
          "any(rank.ahead and rank.allowance for rank in there)", "any(rank.allowance for rank in there)", STALLS),
    Fault("a limit that is given does not hold in the first step", "--stall-timeout", "runtime/launch/stalls.py",
          "if given is None and any(", "if any(", STALLS),
    Fault("torch ends a collective before the limit for stalls", "a long --stall-timeout", "runtime/device.py",
          "max(TIMEOUT, datetime", "min(TIMEOUT, datetime", FLIGHT),
    Fault("no recorder is asked at a stall", "files of the flight recorder", "runtime/launch/flight.py",
          "os.write(descriptor, b\"1\") == 1", "bool(descriptor)", FLIGHT),
    Fault("the recorder's own variables win", "what the user says of the flight recorder",
          "runtime/launch/flight.py", "if not any(name in os.environ for name in names):", "if True:", FLIGHT),
    Fault("ranks of the CPU are recorded", "variables of ranks on the CPU", "runtime/launch/flight.py",
          "if KINDS[kind].recorded:", "if True:", FLIGHT),
    Fault("the allocator's own variables lose", "what the user says of the allocator", "runtime/device.py",
          "} & os.environ.keys():", "} - os.environ.keys():", STREAMS),
    Fault("Python collects besides", "steps of other ranks, which wait", "runtime/garbage.py",
          "    gc.disable()\n", "    gc.enable()\n", GARBAGE),
    Fault("garbage is collected a step later", "steps in which all ranks collect", "runtime/garbage.py",
          "if step % every == 0:", "if step % every == 1:", GARBAGE),
    Fault("old objects are looked at each time", "collections that take long", "runtime/garbage.py",
          "step % (every * _OLD) == 0", "step % every == 0", GARBAGE),
    Fault("a step's time is told in milliseconds", "step_ms on a GPU", "runtime/device.py",
          "begin.elapsed_time(end)) / 1000", "begin.elapsed_time(end))", STREAMS),
    Fault("a time is read before it is there", "step_ms on a GPU", "runtime/device.py",
          "        end.synchronize()\n", "", STREAMS),
    Fault("a step is timed by the host", "step_ms on a device", "runtime/step/train.py",
          "time.perf_counter(), self.kind.moment()", "time.perf_counter(), time.perf_counter()", DEVICE),
    Fault("a number is made in the host's memory", "numbers that are repeated, on a device",
          "runtime/functions/lookups.py", "dtype=dtype, device=world.device)", "dtype=dtype)", DEVICE),
)  # fmt: skip
