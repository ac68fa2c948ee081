"""Constraints on pipeline parallelism. Needs no torch.

The numbers are those that the schedules of torch.distributed.pipelining (2.13) require; a test compares the two.

In messages, `$` is the root of the job file: `$.layout` is its table [layout].
"""

from __future__ import annotations

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe

ONE_STAGE = ("gpipe", "1f1b")
"""Schedules with one stage per rank."""
V_SHAPED = ("zbv", "dualpipev")
"""Schedules with two stages per rank, down the ranks and back up, so that rank 0 has the first and the last stage."""
SPLITS_BACKWARD = ("zero_bubble", *V_SHAPED)
"""Schedules that compute weight gradients separately from input gradients."""


def check(job: Job) -> None:
    """Raises `BadJob`, with the nearest valid layout, if pp, schedule and micro-batches do not fit."""
    layout, schedule = job.layout, job.recipe.schedule
    if layout.pp == 1:
        _check_alone(layout, schedule)
        return
    if schedule == "none":
        raise BadJob(
            f"pp = {layout.pp} at $.layout, but schedule = 'none' at $.recipe: a pipeline needs a schedule.",
            f"Use schedule = '{'1f1b' if job.accumulate >= layout.pp else 'gpipe'}'.",
        )
    if layout.end_less_layers is not None:
        raise BadJob(
            "first_stage_less_layers and last_stage_less_layers at $.layout: trainyard's own trainer divides layers "
            "evenly over stages.",
            "Leave them out.",
        )
    _check_interleave(layout, schedule)
    _check_micro_batches(job)
    if schedule in SPLITS_BACKWARD:
        _check_backward(job.recipe)
    if job.model is not None:
        _check_tied(job.model)
        check_block_count(job.model.layers, "layers", layout)


def _check_alone(layout: Layout, schedule: str) -> None:
    """Raises `BadJob` for pipeline settings without a pipeline (pp = 1)."""
    if schedule != "none":
        raise BadJob(
            f"schedule = {schedule!r} at $.recipe, but pp = 1 at $.layout: there is one stage.",
            "Use schedule = 'none', or pp = 2 or more.",
        )
    if layout.interleave > 1:
        raise BadJob(
            f"interleave = {layout.interleave} at $.layout, but pp = 1: there is one stage.",
            "Use interleave = 1, or pp = 2 or more.",
        )


def _check_interleave(layout: Layout, schedule: str) -> None:
    """Raises `BadJob` unless the stages per rank are those that the schedule runs."""
    stages_per_rank = 1 if schedule in ONE_STAGE else 2 if schedule in V_SHAPED else layout.interleave
    if layout.interleave != stages_per_rank:
        raise BadJob(
            f"interleave = {layout.interleave} at $.layout, but schedule = {schedule!r} runs {stages_per_rank} "
            f"stage{'s' * (stages_per_rank > 1)} per rank.",
            f"Use interleave = {stages_per_rank}, or schedule = 'interleaved'.",
        )


def _check_micro_batches(job: Job) -> None:
    """Raises `BadJob` if the schedule cannot run that number of micro-batches; suggests the nearest that it can."""
    layout, recipe = job.layout, job.recipe
    valid_count = nearest_count(recipe.schedule, layout.pp, job.accumulate)
    if job.accumulate == valid_count:
        return
    if recipe.schedule in ("1f1b", "dualpipev"):
        reason = f"needs at least one for each of {layout.pp} * interleave {layout.interleave} = {valid_count} stages"
    else:
        rounds = job.accumulate // layout.pp
        reason = f"runs them in {job.accumulate} // pp {layout.pp} = {rounds} rounds of equal size"
    # tokens_per_step = seq_len * micro_batch_size * data-parallel ranks * micro-batches
    valid_tokens = recipe.tokens_per_step // job.accumulate * valid_count
    raise BadJob(
        f"{job.accumulate} micro-batches per step at $.recipe (tokens_per_step {recipe.tokens_per_step:,} / (seq_len "
        f"{recipe.seq_len} * micro_batch_size {recipe.micro_batch_size} * "
        f"data-parallel ranks {layout.batch_ranks})), but "
        f"schedule = {recipe.schedule!r} {reason}.",
        f"Use tokens_per_step = {valid_tokens}, for {valid_count}, or schedule = "
        f"'{'gpipe' if recipe.schedule == '1f1b' else 'looped_bfs'}', which takes any number.",
    )


def nearest_count(schedule: str, pp: int, count: int) -> int:
    """The number of micro-batches nearest to `count` that the schedule accepts."""
    if schedule == "1f1b":
        return max(count, pp)
    if schedule == "dualpipev":
        return max(count, 2 * pp)
    if schedule in ("interleaved", "zero_bubble"):
        return count - count % max(1, count // pp)
    return count


def _check_backward(recipe: Recipe) -> None:
    """Raises `BadJob` for settings that prevent a schedule from splitting the backward pass."""
    splits = f"schedule = {recipe.schedule!r}, which computes the gradients of weights apart from those of inputs"
    if recipe.compile:
        raise BadJob(
            f"compile at $.recipe with {splits}: the backward pass of compiled code is one piece.",
            "Use compile = false, or schedule = 'interleaved'.",
        )
    if recipe.activation_checkpoint != "none":
        raise BadJob(
            f"activation_checkpoint = {recipe.activation_checkpoint!r} at $.recipe with {splits}: "
            "torch would recompute a block for its inputs and "
            "again for each of its weights (1 + 9 = 10 times for a block with 9).",
            "Use activation_checkpoint = 'none', or schedule = 'interleaved'.",
        )


def _check_tied(model: Model) -> None:
    """Raises `BadJob` if the head shares the embedding's weights."""
    if model.tie_word_embeddings:
        raise BadJob(
            "tie_word_embeddings = true at $.model, but a pipeline has the embedding in its first stage and the head "
            "in its last: two copies, whose gradients no schedule sums.",
            "Use tie_word_embeddings = false, or pp = 1.",
        )


def check_block_count(count: int, block_name: str, layout: Layout) -> None:
    """Raises `BadJob` unless each stage gets at least one of `count` blocks. `block_name`: their name in the plural,
    for the message."""
    stages = layout.pp * layout.interleave
    if layout.pp == 1 or count >= stages:
        return
    pp = max(1, count // layout.interleave)
    raise BadJob(
        f"pp {layout.pp} * interleave {layout.interleave} = {stages} stages at $.layout, but the model has {count} "
        f"{block_name}: {stages - count} would be empty.",
        f"Use pp = {pp}." if pp > 1 else f"Use {stages} {block_name}, or pp = 1.",
    )
