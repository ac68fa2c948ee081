"""Fault injection into a running job, and a score of its recovery."""
