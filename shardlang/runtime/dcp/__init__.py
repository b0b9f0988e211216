"""Checkpoints in the form of torch.distributed.checkpoint (DCP): read, and written of ours."""
