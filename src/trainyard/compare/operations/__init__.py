"""Two operation trees matched by structure, and the nodes that explain the change of the step."""
