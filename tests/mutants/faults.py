"""All faults, by the part of the project that they are in."""

from __future__ import annotations

from tests.mutants import (
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
)

FAULTS = (
    *operators.FAULTS,
    *oracle.FAULTS,
    *planner.FAULTS,
    *python_text.FAULTS,
    *emitter.FAULTS,
    *events.FAULTS,
    *extensions.FAULTS,
    *importing.FAULTS,
    *loops.FAULTS,
    *microbatches.FAULTS,
    *runtime_collectives.FAULTS,
    *runtime_files.FAULTS,
    *runtime_functions.FAULTS,
    *runtime_training.FAULTS,
    *scans.FAULTS,
    *search.FAULTS,
    *stages.FAULTS,
    *views.FAULTS,
    *weights.FAULTS,
)
