"""Where the places of a plan's meshes are in a run: which rank, at which microbatch, in which stage
of a pipeline.

A plan's meshes are those of one stage, with the microbatches as their last axis; all stages share
them. So one place stands for a rank of each stage."""

from __future__ import annotations

from dataclasses import dataclass

from shardlang.plan.plan import Plan
from shardlang.plan.reads import makers
from shardlang.types.mesh import Mesh


@dataclass(frozen=True)
class Grid:
    """The positions on the meshes of a plan."""

    plan: Plan

    @property
    def positions(self) -> range:
        """Numbers of all positions of a stage: a rank and a microbatch each."""
        return range(self.plan.ranks // self._stages * self.plan.microbatches)

    @property
    def _stages(self) -> int:
        """Coordinates along the axis of the stages."""
        pipeline = self.plan.pipeline
        return pipeline.mesh.axis_size(pipeline.axis) if pipeline is not None else 1

    def microbatch(self, place: int) -> int:
        return place % self.plan.microbatches

    def rank(self, place: int, stage: int) -> int:
        """The rank at a place of a stage."""
        number, pipeline = place // self.plan.microbatches, self.plan.pipeline
        if pipeline is None:
            return number
        of_stage = Mesh(tuple(axis for axis in pipeline.mesh.axes if axis.name != pipeline.axis))
        rank = pipeline.coordinates[stage] * pipeline.mesh.stride(pipeline.axis)
        for axis in of_stage.axes:
            rank += of_stage.coordinate(number, axis.name) * pipeline.mesh.stride(axis.name)
        return rank

    def stages(self, value: int) -> tuple[int, ...]:
        """The stages that have a value: its maker, or the users of a parameter or field."""
        pipeline = self.plan.pipeline
        if pipeline is None:
            return (0,)
        maker = makers(self.plan).get(value)
        if maker is not None:
            return (pipeline.op_stage[self.plan.ops[maker].op],)
        return pipeline.param_stages.get(value) or (0,)
