"""Hypothetical machines: a known machine with some of its numbers changed, and the steps predicted for it."""
