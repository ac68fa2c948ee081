"""Settings of a planned job that DeepSpeed's JSON cannot carry: the training script or the launcher has to set them."""

from __future__ import annotations

from trainyard.job import Job


def settings_outside_json(job: Job) -> tuple[str, ...]:
    """One sentence for each setting, those of every job first. The names are those of DeepSpeed 0.19."""
    layout, recipe = job.layout, job.recipe
    notes = [
        f"Number of ranks, {layout.ranks:,}: the launcher sets it. Data parallelism ({layout.batch_ranks:,} ranks) "
        "follows from it.",
        f"Model and sequence length: the script builds {job.name or 'the model'} and its batches"
        + (f" of {recipe.seq_len:,} tokens per sequence." if job.model else "."),
    ]
    if recipe.activation_checkpoint != "none":
        blocks = "every block" if recipe.activation_checkpoint_every == 1 else (
            f"1 block in {recipe.activation_checkpoint_every}"
        )  # fmt: skip
        notes.append(
            f"Activation checkpointing ({recipe.activation_checkpoint}, {blocks}): the section "
            "activation_checkpointing only configures it. The model has to call deepspeed.checkpointing.checkpoint, or "
            "gradient_checkpointing_enable() of Hugging Face models."
            if layout.pp == 1
            else f"Activation checkpointing ({recipe.activation_checkpoint}, {blocks}): pass "
            "activation_checkpoint_interval=1 to PipelineModule."
        )
    else:
        notes.append("Activation checkpointing: none is planned, so the model must not enable it.")
    if layout.tp > 1:
        notes.append(
            f"Tensor parallelism (tp {layout.tp}): autotp_size divides the models that AutoTP knows. Any other model "
            "has to divide its layers itself."
        )
    if layout.pp > 1:
        notes.append(
            f"Pipeline parallelism (pp {layout.pp}): the script has to wrap the model in PipelineModule with "
            f"num_stages={layout.pp}, and divide its layers evenly."
        )
    return tuple(notes)
