"""The Slurm cluster for the commands' tests."""

from tests.launch.slurm.conftest import cluster, started_cluster

__all__ = ["cluster", "started_cluster"]
