"""All faults, by the part of the project that they are in."""

from __future__ import annotations

from tests.mutants import (
    devices,
    emitter,
    events,
    extensions,
    importing,
    loops,
    microbatches,
    operators,
    oracle,
    planner,
    python_text,
    runtime_collectives,
    runtime_files,
    runtime_functions,
    runtime_training,
    scans,
    search,
    stages,
    views,
    weights,
    words,
)

MODULES = {
    module.__name__.rpartition(".")[2]: module.FAULTS
    for module in (
        operators,
        oracle,
        planner,
        python_text,
        devices,
        emitter,
        events,
        extensions,
        importing,
        loops,
        microbatches,
        runtime_collectives,
        runtime_files,
        runtime_functions,
        runtime_training,
        scans,
        search,
        stages,
        views,
        weights,
        words,
    )
}
FAULTS = tuple(fault for faults in MODULES.values() for fault in faults)
