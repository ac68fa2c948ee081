"""trainyard measured by itself: `python -m benchmarks` (or `make bench`) prints one table."""
