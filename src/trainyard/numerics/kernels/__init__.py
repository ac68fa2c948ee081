"""Single operations of a training checked against float64, element by element."""
