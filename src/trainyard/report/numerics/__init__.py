"""Reports of comparisons of recorded tensors."""
