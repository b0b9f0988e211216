"""What operators mean on whole tensors, on one device."""
