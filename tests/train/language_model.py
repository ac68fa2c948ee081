"""A small language model, trained by a single rank in this process."""

import pytest

from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.recipe import Recipe


def small_job(model, text="python", spread=None, **recipe):
    """A job of a few seconds with the layout `spread`."""
    recipe = {"seq_len": 16, "tokens_per_step": 256, "micro_batch_size": 2, "learning_rate": 1e-2, "seed": 3, **recipe}
    return Job(model=model, layout=spread or Layout(), recipe=Recipe(dataset=text, **recipe))


def trainer_of(job):
    """The trainer of a single rank."""
    torch = pytest.importorskip("torch")
    from trainyard.train.model.language_task import Bytes, Language
    from trainyard.train.process_group import Ranks
    from trainyard.train.step.trainer import Trainer

    torch.set_num_threads(1)  # threads that wait for each other crawl on a machine with other work
    return Trainer(job, Ranks(0, 0, 1, 1, "cpu", torch.device("cpu")), Language(job), Bytes(job), model_flops=0)


def train(job, steps=4):
    """The outcome of each step of a single rank."""
    trainer = trainer_of(job)
    return [trainer(step) for step in range(steps)]
