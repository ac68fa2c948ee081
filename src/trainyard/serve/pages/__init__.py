"""The server's own pages, one per module, built with `markup.py`: they work without scripts."""
