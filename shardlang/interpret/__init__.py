"""What a graph means on one device, and what a plan does on simulated ranks: the oracle that emitted programs are held to."""
