"""Findings on recorded traces, checked without code of the rules: `python -m validation.unseen`."""
