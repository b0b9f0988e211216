"""A graph on one device, and a plan on simulated ranks: the oracle of emitted programs."""
