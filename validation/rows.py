"""Published measurements as cases: rows of training_runs.csv(.gz), or any file with its columns, by configuration.

An id is `<configuration>.<metric>`. Unsupported configurations are kept with the reason, and counted.
"""

from __future__ import annotations

import collections
import csv
import gzip
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd, isfinite, prod
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from trainyard import machine as machines
from trainyard.errors import BadFile
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.economics import step_cost
from trainyard.predict.inputs import cases, hardware, layout_space
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS, PLAIN, module_bits, of_model
from trainyard.predict.memory import framework_memory
from trainyard.predict.memory.framework_memory import USABLE
from trainyard.predict.pipeline import partition, schedules
from validation.sources import SourceMachine, source

COLUMNS = (
    "id", "source_url", "model", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq",
    "moe_experts", "moe_topk", "accelerator", "n_accel", "tp", "pp", "cp", "ep", "dp", "zero_or_fsdp", "micro_batch",
    "global_batch", "precision", "activation_ckpt", "metric", "value", "notes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration. `columns`: the arguments of `cases.build`, empty if the configuration is unsupported for
    `reason`; `seconds`: of a step, 0 if only memory was measured; `peak_bytes`: of memory, 0 if not measured;
    `possibilities`: values of columns that the source leaves open, one of which `columns` has; `differs`: how its
    machine differs from trainyard's file."""

    id: str
    source: str
    accelerator: str
    kind: str
    machine: str
    software: str
    precision: str
    columns: dict[str, float]
    fabric: float
    seconds: float
    peak_bytes: float
    notes: str
    reason: str = ""
    possibilities: tuple[dict[str, float], ...] = ()
    differs: SourceMachine = field(default_factory=SourceMachine)

    @property
    def owner(self) -> str:
        """The owner of its source, whose rows are left out together."""
        return source(self.source).owner

    @property
    def reserved(self) -> bool:
        """Whether the peak counts memory reserved on the device, not only what was allocated of it."""
        return "nvidia-smi" in self.notes or "reserved" in self.notes


MACHINES = {
    "A100": "a100", "A100-80GB": "a100", "A100-SXM": "a100", "A100-40GB": "a100-40gb", "H100": "h100",
    "H100-80GB": "h100", "H800": "h800", "H200": "h200", "B200": "b200", "B300": "b300", "GB200": "gb200",
    "GB300": "gb300", "MI250X": "mi250x", "MI300X": "mi300x", "MI325X": "mi325x", "MI350X": "mi350x",
    "MI355X": "mi355x", "Trainium1": "trn1", "Trainium2": "trn2", "Trainium3": "trn3", "TPU v5p": "tpu-v5p",
    "TPUv5p": "tpu-v5p", "TPU v6e": "tpu-v6e", "TPUv6e": "tpu-v6e", "V100-16GB": "v100-16gb", "V100": "v100-32gb",
}  # fmt: skip
"""Name of a device in sources -> trainyard's machine file."""
_GATED = ("llama", "qwen", "mistral", "mixtral", "deepseek", "gpt-oss", "yi-", "olmo", "gemma", "grok", "phi", "kimi")
_UNTIED = (*_GATED, "nemotron")
_LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 128}
_KNOWN: dict[str, dict[str, float]] = {
    "deepseek-v3": {**_LATENT, "width": 7168, "heads": 128, "kv_heads": 128, "ffn": 18432, "vocab": 129280,
                    "experts": 256, "active_experts": 8, "n_group": 8, "topk_group": 4,
                    "moe_ffn_hidden_size": 2048, "shared_experts": 1, "dense_layers": 3},
    "deepseek-v2": {**_LATENT, "width": 5120, "heads": 128, "kv_heads": 128, "ffn": 12288, "vocab": 102400,
                    "experts": 160, "active_experts": 6, "n_group": 8, "topk_group": 3,
                    "moe_ffn_hidden_size": 1536, "shared_experts": 2, "dense_layers": 1},
    "llama-7b": {"layers": 32, "width": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000},
    "llama-13b": {"layers": 40, "width": 5120, "heads": 40, "kv_heads": 40, "ffn": 13824, "vocab": 32000},
    "llama-65b": {"layers": 80, "width": 8192, "heads": 64, "kv_heads": 64, "ffn": 22016, "vocab": 32000},
    "gpt3-5b": {"layers": 24, "width": 4096, "heads": 32, "kv_heads": 32, "ffn": 16384, "vocab": 51200},
    "gpt3-20b": {"layers": 44, "width": 6144, "heads": 48, "kv_heads": 48, "ffn": 24576, "vocab": 51200},
    "gpt3-23b": {"layers": 28, "width": 8192, "heads": 64, "kv_heads": 64, "ffn": 32768, "seq_len": 2048},
    "gpt3-46b": {"layers": 56, "width": 8192, "heads": 64, "kv_heads": 64, "ffn": 32768, "seq_len": 2048},
    "gpt3-175b": {"seq_len": 2048},
    "kimi-k2": {**_LATENT, "width": 7168, "heads": 64, "kv_heads": 64, "ffn": 18432, "vocab": 163840, "experts": 384,
                "active_experts": 8, "moe_ffn_hidden_size": 2048, "shared_experts": 1, "dense_layers": 1},
    "llama2-7b": {"seq_len": 4096},
    "bloom": {"vocab": 250880},
}  # fmt: skip
"""Sizes by prefix of a model's name, for rows that omit them: from the models' papers and configurations."""
_HYBRIDS = {
    "nemotron_3_nano": "nemotron-3-nano", "nemotron_3_super": "nemotron-3-super", "nemotron-h-8b": "nemotron-h-8b",
    "nemotron-h-56b": "nemotron-h-56b",
}  # fmt: skip
"""Name of a hybrid in sources -> trainyard's preset; the layers of these are published."""
_STATE_SPACES = ("nemotron_3", "nemotron-h", "nemotronh", "mamba", "jamba", "zamba")
_HEAD_DIMS = {"qwen3": 128.0, "gpt-oss": 64.0, "gemma": 256.0}
_PORTS = re.compile(r"(\d+)x [^;0-9]*?(\d+)G/node")
_NODE = re.compile(r"inter-node (\d+) Gb/s")
_RELEASE = re.compile(r"(?:^|; )(2\d)\.(\d\d)(?:\.\d+)? NeMo Container")
_RATE = re.compile(r"([\d.]+) seq/s")
_SAME_STEP = 1.05
"""Largest ratio of the steps that two figures of a row give."""
_SAME_RATE = 2.5
"""Largest ratio of a FLOP/s figure to that of the step: sources count attention and embeddings differently."""
_ROUNDS = re.compile(r"GA=(\d+)")
_LORA = "LoRA"
_NO_TRANSPOSE = ("B200", "B300", "GB200", "GB300")
"""Devices whose float8 products need no second, transposed copy of a weight."""
_SHARDED = ("zero3", "zero2", "fsdp", "hsdp", "full_shard")
_GRACE = ("gb200", "gb300")
_RANK, _MANY = 16.0, 8.0
"""Defaults if a source does not give them: the rank of adapters, and micro-batches per stage and step."""
_MEGATRON_DEEPSPEED = ("bloom", "gpt-neox", "mt-nlg")
"""Models that were trained with Megatron-DeepSpeed."""
_UNPACKED = re.compile(r"unpacked|(?:not|without) pack", re.IGNORECASE)
_OLD = (26, 4)
"""The last Megatron release (year, month) before its much faster experts."""
_STAGES = re.compile(r"V(?:PP?|pp)=(\d+)|(\d+) virtual stages")
_EXPERT_MODULES = {
    "activation_checkpoint": 1.0, "activation_checkpoint_every": 1.0,
    "recompute_modules": module_bits(["layernorm", "moe_act", "mla_up_proj"]),
}  # fmt: skip
"""Columns of the modules that Megatron Core's recipes recompute with experts."""
_RECOMPUTED = {"full": (2.0, 1.0), "every other layer": (2.0, 2.0), "selective": (1.0, 1.0), "op": (1.0, 1.0)}
"""Activation checkpointing in sources -> its column, and every how many layers it has."""
_INTERLEAVES = (2.0, 4.0, 8.0)
"""Stages of a rank that an interleaved schedule may have if its source does not give their number."""
_MODULES = {"norms": "layernorm", "MLA up-projections": "mla_up_proj"}
"""Name of recomputed modules in notes -> Megatron Core's."""


def read(path: Path) -> list[Row]:
    """All configurations of a file. Raises `BadFile` if it cannot be read or lacks columns."""
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
            if missing:
                raise BadFile(f"{path}: no column {', '.join(missing)}.", f"A row has {', '.join(COLUMNS)}.")
            grouped: dict[str, list[dict[str, str]]] = defaultdict(list)
            for line in table:
                grouped[line["id"].rpartition(".")[0] or line["id"]].append(line)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{path}: cannot be read: {error}.") from error
    return [_row(name, lines) for name, lines in grouped.items()]


class _Refused(Exception):
    """A row is unsupported, with the reason."""


def _row(name: str, lines: list[dict[str, str]]) -> Row:
    first, notes = lines[0], "; ".join(dict.fromkeys(line["notes"] for line in lines))
    values = {key: _first(line[key] for line in lines) for key in COLUMNS}
    machine, origin = MACHINES.get(values["accelerator"], ""), source(_source(first["source_url"]))
    differs = origin.machines.get(machine, SourceMachine())
    per_node = differs.per_node or _nodes_of(machine)
    columns: dict[str, float] = {}
    possibilities: tuple[dict[str, float], ...] = ()
    seconds, reason = 0.0, ""
    try:
        _refuse_unclear(first["source_url"], notes)
        columns = _columns(values, notes, per_node) | origin.states
        interleaves = _interleaves(name, notes, columns)
        columns |= interleaves[0] if interleaves else {}
        seconds = _seconds(lines, columns, values, notes)
        if not machine or machine not in machines.known():
            raise _Refused(f"no machine file for accelerator {values['accelerator'] or '(not given)'}")
        if not values["activation_ckpt"] and machine not in _GRACE:
            columns |= _recomputed(columns, machine)
        _refuse_impossible(
            columns,
            seconds,
            machine,
            precision_of(values["precision"].lower(), machines.load(machine)),
            _measured(lines),
        )
        possibilities = _possibilities(values, columns, origin.states, notes, interleaves)
    except _Refused as error:
        columns, reason = {}, str(error)
    peak = next((float(line["value"]) for line in lines if line["metric"] == "peak_mem_gib" and line["value"]), 0.0)
    unit = 1e9 if "decimal GB" in notes else 2**30
    low = values["precision"].lower()
    return Row(
        id=name, source=origin.name, accelerator=values["accelerator"], kind=_kind(columns),
        machine=machine, software=origin.software or _software(values, columns, notes), precision=low, columns=columns,
        fabric=_fabric(notes, per_node), seconds=seconds, peak_bytes=peak * unit, notes=notes, reason=reason,
        possibilities=possibilities, differs=differs,
    )  # fmt: skip


def _refuse_unclear(url: str, notes: str) -> None:
    """Raises `_Refused` for a row that does not say what was measured."""
    if "second-hand" in notes or "quoted in" in url:
        raise _Refused("second-hand: the figure was not read in its publication")
    if _UNPACKED.search(notes):
        raise _Refused("fine-tuning on sequences that are not packed: the tokens per second count padding")


def _refuse_impossible(
    columns: dict[str, float], seconds: float, machine: str, formats: tuple[str, str], measured: dict[str, float]
) -> None:
    """Raises `_Refused` if the step implies more than the devices' peak, with recomputation of whole layers, or another
    rate than the `measured` one."""
    if not seconds:
        return
    case, rank = cases.build(**columns), hardware.of_machine(machines.load(machine), *formats)
    full = columns["activation_checkpoint"] == ACTIVATION_CHECKPOINTS.index("full")
    passes = 1 + 1 / (3 * columns["activation_checkpoint_every"]) if full and not columns["adapters"] else 1.0
    peak = float((rank.low_peak if columns["low_precision"] else rank.peak)[0])
    share = float(step_cost.model_flops(case)[0]) / (seconds * float(case.ranks[0]) * peak)
    if share * passes > 1:
        raise _Refused(f"its step implies {share * passes:.0%} of the devices' peak")
    for stated in (measured.get("mfu"), measured.get("tflops_per_gpu", 0.0) * 1e12 / peak):
        if stated and not 1 / _SAME_RATE < stated / share < _SAME_RATE:
            raise _Refused(f"its step implies {share:.0%} of the devices' peak, its rate {stated:.0%}")


def _possibilities(
    values: dict[str, str],
    columns: dict[str, float],
    states: dict[str, float],
    notes: str,
    interleaves: list[dict[str, float]],
) -> tuple[dict[str, float], ...]:
    """The values that settings may have which the source states neither in the row nor in its text."""
    choices: list[list[dict[str, float]]] = [interleaves] if len(interleaves) > 1 else []
    if not values["activation_ckpt"]:
        guess = {
            name: columns[name]
            for name in ("activation_checkpoint", "activation_checkpoint_every", "recompute_modules")
        }
        more = 2.0 if guess["activation_checkpoint"] else 1.0
        choices.append([guess, guess | {"activation_checkpoint": more, "activation_checkpoint_every": 1.0}])
        if columns["experts"] and guess["activation_checkpoint"] == ACTIVATION_CHECKPOINTS.index("full"):
            choices[-1].append(_EXPERT_MODULES)
    if "flash" not in states and "flash" not in notes.lower() and values["accelerator"].startswith(("A100", "V100")):
        choices.append([{"flash": 0.0}, {"flash": 1.0}])
    if "sequence_parallel" not in states and columns["tp"] > 1:
        choices.append([{"sequence_parallel": 0.0}, {"sequence_parallel": 1.0}])
    combinations = (dict(collections.ChainMap(*combination)) for combination in itertools.product(*choices))
    return tuple(combinations) if choices else ()


def _interleaves(name: str, notes: str, columns: dict[str, float]) -> list[dict[str, float]]:
    """The stages of a rank that an interleaved schedule may have if the source leaves it open: those of `_INTERLEAVES`
    that divide the layers. Empty if it does not, or if the schedule is another one. A schedule is interleaved if the
    notes or the row's id (`-int-`) name it so."""
    is_interleaved = "interleaved" in notes or "int" in name.split("-")
    if not is_interleaved or columns["pp"] == 1 or columns["interleave"] > 1:
        return []
    return [
        {
            "interleave": interleave,
            "schedule": float(schedules.SCHEDULES.index("interleaved")),
            **dict.fromkeys(("first_less", "last_less"), float(partition.counted("uneven", columns["layers"], stages))),
        }
        for interleave in _INTERLEAVES
        if layout_space.divides_evenly(int(columns["layers"]), int(stages := columns["pp"] * interleave))
    ]


def _recomputed(columns: dict[str, float], machine: str) -> dict[str, float]:
    """Recomputation assumed if a source does not give it: with experts, the modules that Megatron Core's recipes
    recompute if that fits; else full, of as few layers as necessary to fit. Not used for devices with a fast link to
    the host's memory, where activations are kept."""
    most = machines.load(machine).device.memory.value * USABLE
    none, some, whole = (
        float(framework_memory.memory(cases.build(**columns | recomputation)).total[0])
        for recomputation in (
            {},
            _EXPERT_MODULES,
            {"activation_checkpoint": float(ACTIVATION_CHECKPOINTS.index("full"))},
        )
    )
    if columns["experts"] and columns["zero"] == 1 and some <= most < none:
        return _EXPERT_MODULES
    share = min(1.0, (none - most) / (none - whole)) if none > whole else 0.0
    return (
        {"activation_checkpoint": float(ACTIVATION_CHECKPOINTS.index("full")), "activation_checkpoint_every": 1 / share}
        if share > 0
        else {}
    )


def _first(values: Iterable[str]) -> str:
    return next((value for value in values if value), "")


def _source(url: str) -> str:
    if paper := re.search(r"arxiv\.org/abs/([\d.]+)", url):
        return f"arXiv:{paper[1]}"
    repository = re.search(r"github\.com/([^/]+/[^/]+)", url)
    return repository[1] if repository else re.sub(r"https?://([^/]*).*", r"\1", url) or "unnamed"


def _number(values: dict[str, str], key: str, default: float | None = None) -> float:
    text = values[key]
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if text and isfinite(number) and number > 0:
        return number
    if default is None:
        raise _Refused(f"{key} is {f'{text!r}, not a positive number' if text else 'not given'}")
    return default


def _columns(values: dict[str, str], notes: str, per_node: int) -> dict[str, float]:
    model = values["model"].lower()
    hybrid = _HYBRIDS.get(model)
    if hybrid is None and any(word in model for word in _STATE_SPACES):
        raise _Refused("a hybrid of attention and state-space layers, whose layers are not given")
    if "vision" in model or "vl" in model.split("-") or "vl" in model.split("_"):
        raise _Refused("a model of text and images")
    known = next((dims for name, dims in _KNOWN.items() if model.startswith(name)), {})
    columns = _preset(hybrid) if hybrid else PLAIN | _model(values, model, known)
    columns |= _layout(values, notes, per_node)
    ends = float(partition.counted("uneven", columns["layers"], columns["pp"] * columns["interleave"]))
    columns |= {"first_less": ends, "last_less": ends}
    columns["schedule"] = float(schedules.SCHEDULES.index("interleaved")) if columns["interleave"] > 1 else 0.0
    columns |= _dispatch(notes)
    columns |= _recipe(values, notes, columns) | {"seq_len": _number(values, "seq", known.get("seq_len"))}
    ranks = prod(columns[axis] for axis in ("dp_replicate", "dp_shard", "tp", "cp", "pp"))
    if columns["samples"] % (columns["dp_replicate"] * columns["dp_shard"] * columns["micro_batch_size"]) > 1e-9:
        raise _Refused(f"global_batch {columns['samples']:g} is not a multiple of dp {ranks:g} x micro_batch")
    return columns


def _preset(name: str) -> dict[str, float]:
    """Columns of one of trainyard's presets."""
    model = msgspec.convert(presets.load(name).model, Model)
    return PLAIN | {column: float(value) for column, value in of_model(model).items()}


def _model(values: dict[str, str], model: str, known: dict[str, float]) -> dict[str, float]:
    def size(key: str, ours: str, default: float | None = None) -> float:
        return _number(values, key, known.get(ours, default))

    width = size("hidden", "width")
    heads = size("heads", "heads", max(1.0, round(width / 128)))
    experts = _number(values, "moe_experts", known.get("experts", 0.0)) if values["moe_experts"] or known else 0.0
    gated = model.startswith(_GATED)
    ffn = size("ffn", "ffn", 4 * width)
    latent = "kv_lora_rank" in known
    dim = next((dim for name, dim in _HEAD_DIMS.items() if model.startswith(name)), width / heads)
    return {
        "layers": size("layers", "layers"), "width": width, "ffn": known.get("ffn", ffn) if latent else ffn,
        "heads": heads, "kv_heads": size("kv_heads", "kv_heads", heads), "head_dim": known.get("head_dim", dim),
        "vocab": size("vocab", "vocab", 51200.0), "gated": float(gated), "learned_positions": float(not gated),
        "tie_word_embeddings": float(not model.startswith(_UNTIED)), "experts": experts,
        "active_experts": _number(values, "moe_topk", known.get("active_experts", 0.0)) if experts else 0.0,
        "moe_ffn_hidden_size": (known.get("moe_ffn_hidden_size", ffn)) if experts else 0.0,
        "shared_experts": known.get("shared_experts", 0.0) if experts else 0.0,
        "dense_layers": _dense_layers(values, known) if experts else 0.0,
        "n_group": known.get("n_group", 0.0), "topk_group": known.get("topk_group", 0.0),
        **{name: known.get(name, 0.0) for name in ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim")},
    }  # fmt: skip


def _dense_layers(values: dict[str, str], known: dict[str, float]) -> float:
    """Layers without experts; at most one in a model cut to a few layers."""
    layers = _number(values, "layers", 61.0)
    return known.get("dense_layers", 0.0) if layers > 8 else min(known.get("dense_layers", 0.0), 1.0)


def _layout(values: dict[str, str], notes: str, per_node: int) -> dict[str, float]:
    if "config ambiguous" in notes:
        raise _Refused("the source does not identify the configuration")
    if not values["tp"] and not values["pp"] and not values["zero_or_fsdp"]:
        raise _Refused("tp, pp and zero_or_fsdp are not given")
    tp, pp, cp, ep = (_number(values, axis, 1.0) for axis in ("tp", "pp", "cp", "ep"))
    devices = _number(values, "n_accel") * _ranks_of(MACHINES.get(values["accelerator"], ""))
    dp = devices / (tp * pp * cp)
    if dp != round(dp) or dp < 1:
        raise _Refused(f"{devices:g} devices / (tp {tp:g} x pp {pp:g} x cp {cp:g}) = {dp:g} is not a whole number")
    zero = values["zero_or_fsdp"].lower()
    stage = 2 if "zero2" in zero else 3 if zero.startswith(_SHARDED) else 1
    if values["dp"] and float(values["dp"]) != dp and not values["accelerator"].startswith("Trainium"):
        raise _Refused(f"dp is {values['dp']}, but {devices:g} devices / (tp {tp:g} x pp {pp:g} x cp {cp:g}) = {dp:g}")
    divided = zero not in ("none", "ddp")  # default: the optimizer's state is sharded, as in Megatron Core
    stages = _STAGES.search(notes)
    interleave = float(stages[1] or stages[2]) if stages and pp > 1 else 1.0
    shard = dp if divided else 1.0
    if zero.startswith("hsdp"):  # default: weights are sharded within a node, and replicated over nodes
        shard = gcd(int(dp), max(1, per_node // int(tp * cp)))
    return {
        "dp_replicate": dp / shard, "dp_shard": shard, "tp": tp, "cp": cp, "pp": pp,
        "ep": ep, "interleave": max(interleave, 1.0), "is_sharded": float(divided),
        "zero": float(stage), "loss_parallel": 1.0,
    }  # fmt: skip


def _dispatch(notes: str) -> dict[str, float]:
    """How tokens are sent to experts: in DualPipe during the compute of another micro-batch, with two stages per rank.
    DualPipe keeps both on each rank twice; the variant here (DualPipeV) has the same order."""
    columns = {"dispatch_bytes": 1.0} if "fp8 dispatch" in notes else {}
    if "DualPipe" in notes:
        columns |= {"overlaps_dispatch": 1.0, "interleave": 2.0}
        columns |= {"schedule": float(schedules.SCHEDULES.index("dualpipev"))}
    return columns


def _batch(values: dict[str, str], notes: str, layout: dict[str, float]) -> tuple[float, float]:
    """Samples per step and per micro-batch."""
    ways, rounds = layout["dp_replicate"] * layout["dp_shard"], _ROUNDS.search(notes)
    if not values["global_batch"] and values["metric"] == "tokens_per_s_per_gpu":
        each = _number(values, "micro_batch")
        return each * ways * _MANY * layout["pp"], each
    samples = _number(values, "global_batch")
    return samples, _number(values, "micro_batch", samples / ways / float(rounds[1]) if rounds else None)


def _recipe(values: dict[str, str], notes: str, layout: dict[str, float]) -> dict[str, float]:
    precision, recomputed = values["precision"].lower(), values["activation_ckpt"].lower()
    modules = [module for words, module in _MODULES.items() if "recomputes" in notes and words in notes]
    activation_checkpoint, every = (1.0, 1.0) if modules else _RECOMPUTED.get(recomputed, (0.0, 1.0))
    sharded = values["zero_or_fsdp"].lower().startswith(_SHARDED)
    mixed = "amp" in precision or sharded
    old = values["accelerator"].startswith(("A100", "V100")) and "fp16" in precision
    small = any(word in precision for word in ("fp8", "fp4", "float8"))
    samples, each = _batch(values, notes, layout)
    weight, gradient = 4.0 if mixed else 2.0, 4.0
    if small and "MLPerf" in notes:  # as in NVIDIA's submissions: fp8_params, grad_reduce_in_fp32=False
        weight, gradient = 1.0 if _LORA in notes or values["accelerator"].startswith(_NO_TRANSPOSE) else 2.0, 2.0
    return {
        "samples": samples, "micro_batch_size": each, "activation_checkpoint": activation_checkpoint,
        "activation_checkpoint_every": every,
        "sequence_parallel": float(not old), "flash": float(not old), "low_precision": float(small), "offload": 0.0,
        "width_bytes": 2.0, "weight_bytes": weight, "gradient_bytes": gradient, "qk_norm": 0.0, "native": 0.0,
        "state_bytes": 8.0 if mixed else 12.0, "reduce_bytes": 2.0 if old else gradient,
        "recomputed_share": 0.5 if sharded and activation_checkpoint == 1 else 0.0,
        # Megatron's default is attention.
        "recompute_modules": module_bits(
            modules or (["core_attn"] if activation_checkpoint == 1 and not sharded else [])
        ),
        "mlp_adapters": _RANK if f"{_LORA} on all matrices" in notes else 0.0,
        "adapters": _RANK if _LORA in notes or "lora" in values["model"].lower() else 0.0,
    }  # fmt: skip


def _seconds(lines: list[dict[str, str]], columns: dict[str, float], values: dict[str, str], notes: str) -> float:
    """The measured step; 0 if only other figures are given. Raises `_Refused` for figures that contradict each other,
    as in mixed units."""
    measured = _measured(lines)
    steps: list[float] = [measured["step_s"]] if "step_s" in measured else []
    if "tokens_per_s_per_gpu" in measured:
        rate = measured["tokens_per_s_per_gpu"] * _number(values, "n_accel")
        steps.append(columns["samples"] * columns["seq_len"] / rate)
    if steps:
        if max(steps) > _SAME_STEP * min(steps):
            raise _Refused(f"its step is {steps[0]:.4g} s, but {steps[1]:.4g} s by its tokens per second and device")
        return steps[0]
    if rate := _RATE.search(notes):
        return columns["samples"] / float(rate[1])
    if measured:
        return 0.0
    raise _Refused("it ran out of memory: no step was measured" if "oom" in notes.lower() else "no value is given")


def _measured(lines: list[dict[str, str]]) -> dict[str, float]:
    """The figures of a row by metric."""
    return {line["metric"]: float(line["value"]) for line in lines if line["value"]}


def _kind(columns: dict[str, float]) -> str:
    if not columns:
        return "unsupported"
    if columns["space_layers"]:
        return "hybrid"
    return "adapters" if columns["adapters"] else "experts" if columns["experts"] else "dense"


def _software(values: dict[str, str], columns: dict[str, float], notes: str) -> str:
    """Software whose overheads apply: sharded data parallelism (not Megatron's own, in NeMo containers),
    Megatron-DeepSpeed, Megatron of 2021 (unfused attention), or Megatron Core."""
    release = _RELEASE.search(notes)
    if not release and values["zero_or_fsdp"].lower().startswith(_SHARDED):
        return "fsdp"
    if "DeepSpeed" in notes or values["model"].lower().startswith(_MEGATRON_DEEPSPEED):
        return "megatron-deepspeed"
    if columns and not columns["flash"]:
        return "megatron-21"
    return "megatron-25" if release and (int(release[1]), int(release[2])) <= _OLD else "megatron"


def _nodes_of(machine: str) -> int:
    """Devices per node."""
    return machines.load(machine).per_node if machine in machines.known() else 8


def _ranks_of(machine: str) -> int:
    """Ranks per device."""
    return machines.load(machine).device.ranks if machine in machines.known() else 1


def _fabric(notes: str, per_node: int) -> float:
    """Bytes/s of a device to other nodes, if the notes give it; else 0."""
    if ports := _PORTS.search(notes):
        return float(ports[1]) * float(ports[2]) * 1e9 / 8 / per_node
    if node := _NODE.search(notes):
        return float(node[1]) * 1e9 / 8 / per_node
    return 0.0


def machine_of(row: Row) -> Machine:
    """The machine of a row, as its source has it. With less power its clock, and so its peaks, are lower by the cube
    root of the ratio: the power of switching grows with the clock and the square of the voltage, which follows it."""
    machine, differs = machines.load(row.machine), row.differs
    device = machine.device
    if differs.power and device.power:
        clock = (differs.power.value / device.power.value) ** (1 / 3)
        peak = {dtype: replace(claim, value=clock * claim.value) for dtype, claim in device.peak.items()}
        device = replace(device, peak=peak)
    bandwidth, sustained = differs.bandwidth or device.bandwidth, dict(differs.sustained)
    device = replace(device, bandwidth=bandwidth, sustained=sustained)
    return replace(machine, device=device, per_node=differs.per_node or machine.per_node)


def precision_of(precision: str, machine: Machine) -> tuple[str, str]:
    """Compute dtype of a row's `precision`, and dtype of its layers' matrix products if lower; both have a peak on the
    device."""
    compute = "float16" if "fp16" in precision and "bf16" not in precision else "bfloat16"
    low: Any = "float4" if "fp4" in precision else "float8" if "fp8" in precision else ""
    peaks = machine.device.peak
    low = low if low in peaks else "float8" if low and "float8" in peaks else ""
    return (compute if compute in peaks else next(iter(peaks))), low
