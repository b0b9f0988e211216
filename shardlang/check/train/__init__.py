"""The `train` block -> the graph of a step and the settings of a run."""
