"""Checkpoints as they are on the disk, without torch: their folders, their index, the files of
ranks."""
