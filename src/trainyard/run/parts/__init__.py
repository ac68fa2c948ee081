"""One run of many nodes: what each node records of a job, how it is packed, collected and joined."""
