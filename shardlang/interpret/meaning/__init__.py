"""The meaning of operators on whole tensors, on one device."""
