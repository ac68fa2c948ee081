"""Faults made on purpose in a running job, and the score of how it takes them."""
