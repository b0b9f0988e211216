"""Steps -> models: expressions, dims that become one, equal calls as one model."""
