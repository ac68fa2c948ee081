"""Since when? Change points in a long series of one figure a run, with error rates that hold whatever the noise."""
