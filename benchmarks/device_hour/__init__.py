"""The parts of `make device-evidence` (`benchmarks/evidence.py`), one module each."""
