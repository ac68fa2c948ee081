"""Comparison of two records of tensors: which tensor of the one is the first that rounding does not explain."""
