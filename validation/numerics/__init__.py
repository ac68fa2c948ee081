"""Planted faults and benign pairs that test `trainyard numerics compare`: `python -m validation.numerics`."""
