"""The annotations that mark steps in a profile."""

from __future__ import annotations

STEP_MARK = "ProfilerStep#"
"""Prefix of the annotations with which torch.profiler marks steps. Another prefix, as chosen by `--mark`, is in
`Events.mark`."""
INFERRED_MARK = "step::"
"""Prefix of the annotations that a reader finds to be steps, in a file without step marks."""
