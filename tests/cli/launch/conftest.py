"""The Slurm cluster, the shifted clock and the real job for the commands' tests."""

from tests.launch.real_job import job, local_losses, store
from tests.launch.slurm.conftest import cluster, started_cluster
from tests.run.parts.two_hosts import shifted_clock

__all__ = ["cluster", "job", "local_losses", "shifted_clock", "started_cluster", "store"]
