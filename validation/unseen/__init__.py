"""Findings on recorded traces, checked by a script that shares no code with the rules: `python -m validation.unseen`."""
