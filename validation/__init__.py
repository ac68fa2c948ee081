"""Predictions against published and own measurements, with the error table: `python -m validation.<name>`."""
