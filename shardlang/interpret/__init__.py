"""What a graph means on one device, and what a plan does on simulated ranks: the oracle of emitted programs."""
