"""The tensor functions of operators' emitted text: with collectives, masks or random numbers."""
