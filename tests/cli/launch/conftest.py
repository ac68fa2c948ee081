"""The Slurm cluster and the shifted clock for the commands' tests."""

from tests.launch.slurm.conftest import cluster, started_cluster
from tests.run.parts.two_hosts import shifted_clock

__all__ = ["cluster", "shifted_clock", "started_cluster"]
