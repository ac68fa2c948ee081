"""The real job for the tests of this folder."""

from tests.launch.real_job import job, local_losses, store

__all__ = ["job", "local_losses", "store"]
