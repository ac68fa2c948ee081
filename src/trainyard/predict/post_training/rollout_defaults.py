"""Default settings of generation in post-training."""

from __future__ import annotations

LENGTH_CV = 0.6
"""Standard deviation of response lengths over their mean. Assumed: it depends on the task and the model."""
MAX_NUM_SEQS = 1024
"""Most concurrent requests of a replica, by the name of vLLM's setting."""
MEMORY_SHARE = 0.9
"""Share of the device memory for weights and KV cache: the default of vLLM's `gpu_memory_utilization`."""
