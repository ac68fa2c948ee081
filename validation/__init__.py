"""Predictions compared with published and own measurements, with error tables: `python -m validation.<name>`."""
