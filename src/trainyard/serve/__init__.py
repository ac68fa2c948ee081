"""`trainyard serve`: the pages and documents of a store over HTTP, for the browsers of one machine or a team.

Requests name runs by id and nothing by path. Names of jobs, tags and hosts come from files and are hostile input: pages
are built by `markup.py`, which escapes every text.
"""
