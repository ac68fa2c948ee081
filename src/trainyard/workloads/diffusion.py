"""The `Workload` that trains a diffusion transformer or a U-shaped network on latents."""

from __future__ import annotations

from typing import Any

from trainyard.job import Job
from trainyard.workloads.image_workload import ImageWorkload
from trainyard.workloads.ops import diffusion_ops


class Diffusion(ImageWorkload):
    name = "diffusion"
    ops = diffusion_ops

    def task_and_samples(self, job: Job, sizes: Any) -> tuple[Any, Any]:
        from trainyard.train.diffusion.diffusion_task import Denoise
        from trainyard.train.diffusion.latents import NoisyLatents

        return Denoise(job, sizes), NoisyLatents(job, sizes)
