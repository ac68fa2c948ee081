"""The `Workload` that trains a vision transformer or a residual network to classify images."""

from __future__ import annotations

from typing import Any

from trainyard.job import Job
from trainyard.workloads.image_workload import ImageWorkload
from trainyard.workloads.ops import vision_ops


class Vision(ImageWorkload):
    name = "vision"
    ops = vision_ops

    def task_and_samples(self, job: Job, sizes: Any) -> tuple[Any, Any]:
        from trainyard.train.vision.vision_task import Classify, Labelled

        return Classify(job, sizes), Labelled(job, sizes)
