"""Checkpoints of ours to torch.distributed.checkpoint, and checkpoints of its to ours."""
