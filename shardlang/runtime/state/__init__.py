"""The state that a run keeps from step to step: parameters, optimizers, checkpoints."""
