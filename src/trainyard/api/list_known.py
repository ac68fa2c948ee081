"""The models and machines that `plan` knows by name."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trainyard import machine, plugins
from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.model import Model
from trainyard.models import presets
from trainyard.models.presets import Preset
from trainyard.predict.inputs import cases
from trainyard.recipe import Recipe
from trainyard.report.plans.catalogue import Catalogue, KnownModel


def list_known(kind: Literal["", "models", "machines"]) -> Catalogue:
    """The models and machines that a name can stand for; only those of `kind` if it is not empty."""
    return Catalogue(
        models={} if kind == "machines" else {name: _known_model(name) for name in presets.known()},
        machines={} if kind == "models" else {name: machine.load(name) for name in machine.known()},
    )


def _known_model(name: str) -> KnownModel:
    """A preset as a row of the catalogue: its parameters, layers and hidden size, as far as it has them."""
    preset = presets.load(name)
    job, sizes = _job(name, preset), preset.sizes or {}
    decoder = job.model
    parameters = int(preset.parameters.value) if preset.parameters else _count(job)
    depth = decoder.layers if decoder else _depth(sizes)
    return KnownModel(
        name=name,
        workload=job.workload,
        parameters=parameters,
        active=int(preset.active.value) if preset.active else None,
        layers=depth,
        hidden_size=decoder.hidden_size if decoder else sizes["width"] if depth else None,
        planned=_is_planned(job),
        source=preset.source,
    )


def _job(name: str, preset: Preset) -> Job:
    """A job that trains the preset's model with one sample on one rank, from which its parameters are counted."""
    if preset.model is not None:
        model = msgspec.convert({"name": name, **preset.model}, Model)
        return Job(name=name, model=model, recipe=Recipe(tokens_per_step=1))
    recipe = Recipe(tokens_per_step=1, dataset="synthetic")
    return Job(name=name, workload=preset.workload, sizes=preset.sizes or {}, recipe=recipe)


def _depth(sizes: dict[str, Any]) -> int | None:
    """Number of blocks: `layers`, or the sum over the kinds of blocks of a diffusion transformer; None for sizes
    without them."""
    counts = [sizes[key] for key in ("layers", "double", "single", "plain") if isinstance(sizes.get(key), int)]
    return sum(counts) or None


def _count(job: Job) -> int | None:
    """Parameters as the workload counts them; None if it does not train the model."""
    try:
        return plugins.load("workloads", job.workload).weights(job)
    except BadInput:
        return None


def _is_planned(job: Job) -> bool:
    """Whether the planner can predict the job."""
    try:
        cases.subject(job)
    except BadInput:
        return False
    return True
