"""Records of the tensors of a training."""
