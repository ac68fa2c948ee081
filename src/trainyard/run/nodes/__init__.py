"""Jobs on several hosts: the head, the other nodes, and their parts of the run."""
