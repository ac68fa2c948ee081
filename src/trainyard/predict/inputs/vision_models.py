"""Vision and diffusion Transformers as cases: the columns of a job's `[sizes]`.

A sample counts as one token of its job; its positions (patches, with a class token or with those of a text) follow from
the sizes, and attention has no causal mask. A stream of a diffusion Transformer's block is the positions that share its
weights: a double-stream block has weights for the image and weights for the text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.recipe import Recipe
from trainyard.train.diffusion.diffusion_sizes import KINDS as DIFFUSION
from trainyard.train.diffusion.diffusion_sizes import TIME_WIDTH, Dit
from trainyard.train.sizes import convert
from trainyard.train.vision.vision_sizes import KINDS as VISION
from trainyard.train.vision.vision_sizes import Vit

WORKLOADS = {"vision": VISION, "diffusion": DIFFUSION}


class VisionModel(NamedTuple):
    """The model of a vision or diffusion job, with the attributes of `Model` that the planner needs. `divides`: the
    dimensions that tp must divide evenly, by name."""

    name: str
    workload: str
    sizes: dict[str, Any]
    network: Vit | Dit

    @property
    def layers(self) -> int:
        net = self.network
        return net.layers if isinstance(net, Vit) else net.double + net.single + net.plain

    @property
    def positions(self) -> int:
        """Positions of a sample."""
        net = self.network
        return net.tokens if isinstance(net, Vit) else net.patches + net.text_tokens

    @property
    def heads(self) -> int:
        return self.network.heads

    @property
    def joined(self) -> bool:
        """Whether the last blocks process images and text jointly, with rotary positions, as in FLUX."""
        return isinstance(self.network, Dit) and bool(self.network.single and self.network.rope)

    @property
    def divides(self) -> dict[str, int]:
        net = self.network
        out = {"classes": net.classes} if isinstance(net, Vit) else {"numbers of a patch": net.dots}
        return {"heads": net.heads, "channels of the MLP": net.ffn, **out}

    def job(self, layout: Layout, recipe: Recipe) -> Job:
        return Job(name=self.name, workload=self.workload, sizes=self.sizes, layout=layout, recipe=recipe)


_SUPPORTED = (
    "The planner supports decoders, hybrids, and vision and diffusion Transformers; trainyard plan list models "
    "marks other known models with *."
)
"""The next step for a model that is not planned for."""


def of_job(job: Job) -> VisionModel:
    """The model of a job. Raises `BadJob` if its sizes are invalid or not those of a Transformer."""
    kinds = WORKLOADS.get(job.workload)
    if kinds is None:
        raise BadJob(
            f"{job.name} is not planned for: its workload is {job.workload!r}.",
            _SUPPORTED,
        )
    network = convert(job, *kinds)
    if not isinstance(network, Vit | Dit):
        family = type(network).__struct_config__.tag
        raise BadJob(
            f"{job.name} is not planned for: it is an image model of the family {family!r}, not a Transformer.",
            _SUPPORTED,
        )
    return VisionModel(name=job.name, workload=job.workload, sizes=job.sizes, network=network)


def columns(model: VisionModel) -> dict[str, Any]:
    """Columns of the model (name of a column of `Cases` -> value): those of a decoder's dimensions, and those of vision
    models only."""
    net = model.network
    common = {
        "layers": model.layers,
        "width": net.width,
        "ffn": net.ffn,
        "heads": net.heads,
        "kv_heads": net.heads,
        "head_dim": net.width // net.heads,
        "gated": 0,
        "learned_positions": 0,
        "tie_word_embeddings": 0,
        "seq_len": model.positions,
        "unmasked": 1,
        "sequence_parallel": 0,
        "loss_parallel": 0,
    }
    return common | (_vit_columns(net) if isinstance(net, Vit) else _dit_columns(net))


def _vit_columns(net: Vit) -> dict[str, Any]:
    """Columns (name of a column of `Cases` -> value) of an image classifier that a decoder does not have."""
    patch_values = net.patch**2 * net.channels
    norms = 4 * net.width  # weight and bias of two norms
    biases = 5 * net.width + net.ffn  # of queries, keys, values and attention's output; down; up
    return {
        "vocab": net.classes,
        "head_rows": 1,
        "qk_norm": 0,
        "entry_values": (net.tokens - 1) * patch_values,
        "vector_parameters": norms + biases - 2 * net.width,  # `Cases` counts `width` for each norm
        # The patch projection with its bias, the class token, and a position embedding per token.
        "lead_parameters": (patch_values + 2 + net.tokens) * net.width,
        "tail_parameters": 2 * net.width + net.classes,
        "input_values": net.channels * net.image**2,
    }


def _dit_columns(net: Dit) -> dict[str, Any]:
    """Columns (name -> value) of a diffusion Transformer that a decoder does not have. Each stream of a block has its
    own matrices and biases. If the last block is a double-stream block, its text stream has nothing after attention,
    and no modulation for it."""
    width, layers = net.width, net.double + net.single + net.plain
    text_ends = int(net.double > 0 and not net.single)
    streams = 2 * net.double + net.single + net.plain  # over all blocks
    # Six for each stream (shift, scale and gate of attention and MLP), two if it ends; three for a single-stream block.
    modulation_vectors = 12 * net.double - 4 * text_ends + 3 * net.single + 6 * net.plain
    # Biases of queries, keys and values; of attention's output and the two matrices of the MLP, whose outputs share one
    # bias in a single-stream block; of the modulation.
    biases = (
        streams * 3 * width
        + (streams - text_ends) * (2 * width + net.ffn)
        - net.single * width
        + modulation_vectors * width
    )
    qk_norm_parameters = 2 * streams * (width // net.heads) * net.qk_norm
    # Inputs of the embeddings of a sample's vectors, two matrices each.
    conditioning = (1 + net.guidance) * (TIME_WIDTH + width) + net.pooled_width + width
    final_modulation = 2 * width  # scales and shifts before the head
    entry_values = net.patches * net.dots + net.text_tokens * net.text_width + conditioning + final_modulation
    text_rows = (net.text_width + 1) * (net.text_tokens > 0)
    lead_parameters = (net.dots + 1 + text_rows + conditioning + 2 * (2 + net.guidance)) * width
    return {
        "vocab": net.dots,
        "head_rows": net.patches,
        "qk_norm": net.qk_norm,
        "entry_values": entry_values,
        "lead_parameters": lead_parameters,
        "tail_parameters": final_modulation * (width + 1) + net.dots,
        "text_positions": net.text_tokens,
        "double_layers": net.double,
        "text_ends": text_ends,
        "input_values": 2 * net.channels * net.latent**2 + net.text_tokens * net.text_width + net.pooled_width,
        "modulation_vectors": modulation_vectors / layers,
        "vector_parameters": (biases + qk_norm_parameters) / layers - 2 * width,
    }
