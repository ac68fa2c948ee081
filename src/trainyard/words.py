"""The closed vocabularies: for each word its label, its meaning in one sentence and the colour it is drawn in.

Other files use these tables instead of lists of literals (a test checks it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from trainyard.errors import UnknownName, near, nearest


class Word(NamedTuple):
    """A term: its display label, meaning, and colour in charts."""

    label: str
    means: str
    colour: str = "#8a8f98"


class Injection(NamedTuple):
    """An injected fault. `strikes`: a rank, a node or the whole job; `blamed`: the word of FAULTS that detection must
    report."""

    label: str
    means: str
    strikes: Literal["rank", "node", "job"]
    blamed: str


class Metric(NamedTuple):
    """A metric of a run: its unit, and which direction is an improvement."""

    label: str
    means: str
    unit: Literal["ns", "B", "1/s", "share", ""]
    better: Literal["lower", "higher"] = "lower"


class AccountKind(NamedTuple):
    """A kind of account. `whats`: the words allowed after its slash; empty if it has no subdivision."""

    label: str
    means: str
    colour: str
    whats: Mapping[str, Word]


COLLECTIVES: Mapping[str, Word] = {
    "all_reduce": Word("all-reduce", "Every rank ends with the sum of all ranks' data.", "#e0862b"),
    "all_gather": Word("all-gather", "Every rank ends with all ranks' shards.", "#e6a23c"),
    "reduce_scatter": Word("reduce-scatter", "Every rank ends with its shard of the sum.", "#d9632b"),
    "all_to_all": Word("all-to-all", "Every rank sends a different part to every other.", "#c9742f"),
    "broadcast": Word("broadcast", "One rank's data reaches all others.", "#d8a15c"),
    "reduce": Word("reduce", "One rank ends with the sum of all ranks' data.", "#cf8f4a"),
    "send_recv": Word("send/recv", "Point-to-point transfer, as between pipeline stages.", "#c4a42a"),
    "barrier": Word("barrier", "Ranks wait for each other and exchange nothing.", "#b58a4e"),
    "other": Word("other comm.", "Communication whose collective the file does not name.", "#b9a48a"),
}

OP_CLASSES: Mapping[str, Word] = {
    "matmul": Word("Matmul", "Dense matrix products (GEMM).", "#3b6fdb"),
    "attention": Word("Attention", "Fused or scaled-dot-product attention.", "#7b57c9"),
    "conv": Word("Convolution", "Convolutions, forward and both backwards.", "#2f8fb8"),
    "norm": Word("Norm", "Batch, layer, group and RMS normalisation.", "#6c8fd6"),
    "elementwise": Word("Elementwise", "Pointwise arithmetic, casts and fills.", "#9db4e0"),
    "reduction": Word("Reduction", "Sums, means, maxima, sorts and scans.", "#5a9bd5"),
    "embedding": Word("Embedding", "Table look-ups, gathers and scatters by index.", "#8a6fd1"),
    "softmax": Word("Softmax", "Softmax and cross-entropy outside attention.", "#a07fd6"),
    "optimizer": Word("Optimizer", "The parameter update.", "#2f9e8f"),
    "moe_route": Word("MoE routing", "Choosing experts and permuting tokens to them.", "#b06fc9"),
    "other": Word("Other compute", "Arithmetic no table recognises: part of the coverage.", "#7f8ea8"),
}

COPIES: Mapping[str, Word] = {
    "h2d": Word("Copy host to device", "Host memory to device memory.", "#8ca676"),
    "d2h": Word("Copy device to host", "Device memory to host memory.", "#7d9a68"),
    "d2d": Word("Copy on device", "Device to device, same or peer.", "#9bb388"),
    "memset": Word("Memset", "Filling device memory with one byte.", "#b0c2a1"),
}

CHECKPOINTS: Mapping[str, Word] = {
    "save": Word("Checkpoint save", "The step waits while state goes out.", "#b5528c"),
    "load": Word("Checkpoint load", "The step waits while state comes in.", "#c77aa8"),
}

BUBBLES: Mapping[str, Word] = {
    "warmup": Word("Bubble, warm-up", "A pipeline stage waits for its first micro-batch.", "#8e62c9"),
    "drain": Word("Bubble, drain", "A pipeline stage has done its last micro-batch.", "#a583d4"),
    "steady": Word("Bubble, steady", "A pipeline stage waits between micro-batches.", "#bda4df"),
}

# Distinguishable with any colour vision, and on light and dark backgrounds (tests/report/render/test_idle_colours.py).
GAPS: Mapping[str, Word] = {
    "sync": Word("Idle: host sync", "The host waited for the device before launching more.", "#784517"),
    "alloc": Word("Idle: allocation", "The host was allocating or freeing memory.", "#917106"),
    "python": Word("Idle: Python", "The host was in Python and had launched nothing.", "#beb84f"),
    "host": Word("Idle: host code", "The host was outside recorded calls and had launched nothing.", "#8b974c"),
    "compile": Word("Idle: compilation", "The host was compiling.", "#049f86"),
    "gc": Word("Idle: garbage collection", "The host was collecting garbage.", "#5e4b3b"),
    "launch": Word("Idle: launch-bound", "The host was inside framework or driver launch code.", "#1c5b7d"),
    "queue": Word("Idle: waiting on dependency", "Work was launched but had not started.", "#565c64"),
    "stream_wait": Word("Idle: waiting on another stream", "Work waited for another stream.", "#25c9f0"),
    "init": Word("Idle: initialisation", "A library or the driver was initialised at its first use.", "#e5ae81"),
    "edge": Word("Idle: edge of the profile", "Work waited for work from before the profile began.", "#8cbfc4"),
}
LAUNCHED_GAPS = ("queue", "stream_wait", "edge")
"""Keys of GAPS for idle time after the launch of the next work, of which the host is not the cause."""

_NONE: Mapping[str, Word] = {}

# In order of precedence: at each instant the first live kind owns the instant (ledger.md).
KINDS: Mapping[str, AccountKind] = {
    "compute": AccountKind("Compute", "An arithmetic kernel runs.", "#3b6fdb", OP_CLASSES),
    "straggler": AccountKind(
        "Straggler wait", "In a collective, before the last peer has arrived.", "#cf3f2e", COLLECTIVES
    ),
    "comm": AccountKind("Exposed communication", "Communication with no compute over it.", "#e0862b", COLLECTIVES),
    "copy": AccountKind("Copy", "A copy runs and nothing computes or communicates.", "#8ca676", COPIES),
    "checkpoint": AccountKind("Checkpoint", "The step stalls for state going out or in.", "#b5528c", CHECKPOINTS),
    "data_wait": AccountKind("Data wait", "The host waits for the next batch.", "#5e8c5b", _NONE),
    "bubble": AccountKind("Pipeline bubble", "A pipeline stage has nothing it could run.", "#8e62c9", BUBBLES),
    "launch_gap": AccountKind("Idle", "The device is idle; the host shows why.", "#1c5b7d", GAPS),
    "unexplained": AccountKind("Unexplained", "No rule claimed it.", "#a9adb5", _NONE),
}

PHASES: Mapping[str, Word] = {
    "forward": Word("forward", "Launched by the forward pass."),
    "backward": Word("backward", "Launched by the autograd engine."),
    "recompute": Word("recompute", "Forward work done again in the backward pass (checkpointing)."),
    "optimizer": Word("optimizer", "Launched by the parameter update."),
    "other": Word("other", "Between the phases, or the file does not say."),
}

BASES: Mapping[str, Word] = {
    "predicted": Word("predicted", "Computed from a job and a machine."),
    "measured": Word("measured", "Booked from what a profiler saw."),
}

HOWS: Mapping[str, Word] = {
    "seen": Word("seen", "An event in the file shows it."),
    "inferred": Word("inferred", "A rule concluded it from events around it."),
    "modelled": Word("modelled", "A cost model computed it."),
}

PARTS: Mapping[str, Word] = {
    "step": Word("step", "A step, as marked or inferred."),
    "cut": Word("cut off", "Work before the first mark or after the last step, or a step of which a part is missing."),
    "warmup": Word("warm-up step", "One of the first inferred steps, if it takes much longer than the median step."),
    "evaluation": Word("evaluation", "Forward passes without backward pass and optimizer among training steps."),
    "checkpoint": Word("checkpoint", "State is saved or loaded between training steps."),
    "pause": Word("pause", "Nothing trains for much longer than a step, and no span shows a cause."),
}
"""Kinds of the parts of a rank's window. Only steps count in means."""

STEP_SOURCES: Mapping[str, Word] = {
    "optimizer": Word("optimizer steps", "Annotations `Optimizer.step#` that follow a backward pass."),
    "loader": Word("batches", "Fetches of `enumerate(DataLoader)`."),
    "annotation": Word("annotations", "Annotations of one name that repeat."),
    "kernels": Word("kernels", "A sequence of kernels that repeats."),
}
"""Evidence from which steps are inferred, if the file does not mark them."""

STEP_CLOCKS: Mapping[str, Word] = {
    "host": Word("host clock", "The host's clock, without waiting for a device."),
    "synchronized": Word("host clock, synchronized", "The host's clock, read after the device had ended all work."),
    "events": Word("device events", "Events in the device's stream at both ends of a step."),
}
"""Clocks that time the steps of a run."""

MISSING_COSTS: Mapping[str, Word] = {
    "no_formula": Word("no formula", "No built-in formula or formula of the user has the op's name."),
    "no_arguments": Word(
        "no shapes",
        "The op has a formula, but the file does not record its arguments.",
    ),
    "missing_values": Word(
        "missing values",
        "The formula needs a value that the file does not record, such as the format of listed tensors.",
    ),
    "no_op": Word("no op", "The file shows no op around the kernel's launch."),
}
"""Why the FLOPs and bytes of compute are not known."""

ALIGNMENTS: Mapping[str, Word] = {
    "no": Word(
        "no", "Ranks' clocks are not known to agree: waiting for a late peer stays inside comm, and no rank is blamed."
    ),
    "host": Word("host", "All ranks ran on one host and share its clock."),
    "collectives": Word("collectives", "Clocks were solved from the common ends of collectives."),
    "bounds": Word(
        "bounds", "Clock offsets were bounded: no rank leaves a collective before the last one has arrived."
    ),
}

REDUCES: Mapping[str, Word] = {
    "one": Word("one", "One rank, one part of its window."),
    "mean": Word("mean", "The mean over the ranks and steps named."),
}

VERDICTS: Mapping[str, Word] = {
    "better": Word("better", "Every after is below every before."),
    "worse": Word("worse", "Every after is above every before."),
    "same": Word("same", "No difference."),
    "unknown": Word("cannot tell", "The spread covers both signs, or there is no spread to judge by."),
}

SEVERITIES: Mapping[str, Word] = {
    "high": Word("high", "At least a tenth of the step.", "#cf3f2e"),
    "medium": Word("medium", "At least three per cent of the step.", "#e0862b"),
    "low": Word("low", "Worth knowing.", "#8a8f98"),
}

PRICES: Mapping[str, Word] = {
    "replayed": Word("recovered", "The step is shorter by this in a replay without the cause."),
    "bound": Word("at most", "The time that the rule attributes to the cause: an upper bound, not replayed."),
    "none": Word("not recoverable", "The time is not attributed to a cause that could be removed."),
}

AXES: Mapping[str, Word] = {
    "dp_replicate": Word("dp_replicate", "Data parallel: parameters replicated."),
    "dp_shard": Word("dp_shard", "Data parallel: parameters sharded (FSDP, ZeRO)."),
    "tp": Word("tp", "Tensor parallel: matrices split."),
    "cp": Word("cp", "Context parallel: the sequence split."),
    "pp": Word("pp", "Pipeline parallel: layers split into stages."),
    "ep": Word("ep", "Expert parallel: experts split."),
}

DTYPES: Mapping[str, int] = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "float4": 1}
"""Names of number formats -> bytes an element (float4 is packed two to a byte; rounded up here)."""
_OTHER_DTYPES = ("float64", "float6", "int8", "int4")
"""Number formats of devices that are not supported, and not misspelt names of those that are."""

RECOMPUTE_MODULES: Mapping[str, Word] = {
    "layernorm": Word("norms", "Norms, whose outputs are the inputs of matrix products."),
    "core_attn": Word("attention", "Attention without its projections."),
    "moe_act": Word("expert activation", "The activation function of experts."),
    "mla_up_proj": Word("latent expansion", "Projections that expand the compressed channels of latent attention."),
    "mlp": Word("MLP", "The MLP of layers without experts."),
    "moe": Word("experts", "Experts with their router, dispatch and combine."),
    "shared_experts": Word("shared experts", "Experts that every token uses."),
}
"""Modules of a layer that selective activation checkpointing can recompute, by Megatron Core's names."""

VENDORS: Mapping[str, Word] = {
    "nvidia": Word("NVIDIA", "CUDA devices, NCCL."),
    "amd": Word("AMD", "ROCm devices, RCCL."),
    "aws": Word("AWS", "Trainium devices, Neuron collectives."),
    "google": Word("Google", "TPU devices, XLA collectives."),
    "cpu": Word("CPU", "Host cores, gloo."),
    "pretend": Word("pretend", "A device that exists only in tests."),
}

MEMORY: Mapping[str, Word] = {
    "parameter": Word("Parameters", "Weights and buffers of the model.", "#3b6fdb"),
    "parameter_inferred": Word(
        "Parameters (inferred)", "Weights and buffers by their sizes: from before the trace, never freed.", "#7f9fe6"
    ),
    "optimizer_state": Word("Optimizer state", "What the optimizer keeps from step to step.", "#2f9e8f"),
    "optimizer_state_inferred": Word(
        "Optimizer state (inferred)", "As many tensors of each parameter's size, from before the trace.", "#74bfb4"
    ),
    "gradient": Word("Gradients", "What the backward pass leaves for the optimizer.", "#e0862b"),
    "gradient_inferred": Word(
        "Gradients (inferred)", "One tensor of each parameter's size, from before the trace.", "#ecb273"
    ),
    "activation": Word("Activations", "What the forward pass keeps for the backward pass.", "#7b57c9"),
    "temporary": Word("Temporaries", "Gone before the phase that made them was over.", "#9db4e0"),
    "communication": Word("Communication", "Buffers of collectives and of gradient buckets.", "#cf3f2e"),
    "input": Word("Inputs", "Batches on the device.", "#8ca676"),
    "unknown": Word("Unknown", "No stack identifies it, or it was allocated before the trace began.", "#a9adb5"),
}
"""Uses of device memory in stacking order, the longest-lived at the bottom."""

SHORTAGES: Mapping[str, Word] = {
    "elsewhere": Word("free elsewhere", "A free block was large enough, but another stream's or pool's."),
    "fragmented": Word("fragmented", "Enough bytes were cached and free, in pieces too small."),
    "divided": Word("divided", "Cached and device memory together were enough, neither was alone."),
    "full": Word("full", "All that was free together was less than was asked for."),
}
"""Why an allocation failed."""

FAULTS: Mapping[str, Word] = {
    "worker_death": Word("worker death", "A rank's process ended early."),
    "agent_death": Word("agent death", "The agent of a node ended, and its ranks with it."),
    "supervisor_death": Word("supervisor death", "The supervisor of the job ended, and all ranks with it."),
    "command_death": Word("command death", "The command of `trainyard run -- COMMAND` failed."),
    "hang": Word("hang", "A rank took no step for longer than it may."),
    "slow": Word("slow rank", "A rank takes longer than its peers, step after step."),
    "disk_full": Word("full disk", "A checkpoint found no room."),
    "bad_checkpoint": Word("bad checkpoint", "A checkpoint's files are not what was written."),
    "non_finite": Word("non-finite values", "The loss or the gradient norm of a step was NaN or infinite."),
    "loss_spike": Word("loss spike", "The loss of a step was far above the losses before it."),
    "preempted": Word("pre-empted", "The job was asked to leave, and left, saving first where it has checkpoints."),
}
"""Faults of a running job."""

HANGS: Mapping[str, Word] = {
    "missing_collective": Word("missing collective", "A rank did not enter a collective that its peers wait in."),
    "wrong_order": Word("wrong order", "A rank entered another collective than its peers at the same position."),
    "wrong_size": Word("wrong size", "A rank entered a collective with another number of elements than its peers."),
    "wrong_dtype": Word("wrong dtype", "A rank entered a collective with another number format than its peers."),
    "host_stuck": Word("host stuck", "A rank's Python code is stuck before a collective that its peers wait in."),
    "dead_process": Word("dead process", "A rank's process ended, and its peers wait for it."),
    "data_loader": Word("data loader", "A rank waits for a batch of its data loader."),
    "stopped_process": Word("stopped process", "A rank's process is stopped, as by SIGSTOP."),
    "device_stuck": Word(
        "device stuck",
        "The device of a rank does not start a collective that it entered, or does not end one that all ranks entered; "
        "or the only rank waits for its device.",
    ),
    "network": Word("network", "All ranks entered and started a collective, and it ends on none."),
    "cannot_tell": Word("cannot tell", "The records do not decide why the ranks wait."),
    "no_hang": Word("no hang", "Every recorded collective has ended, and the ranks agree on all of them."),
}
"""Verdicts on ranks that hang, or that fail because their collectives do not match."""

STEP_ACTIONS: Mapping[str, Word] = {
    "stop": Word("stop", "The run ended, without the update of the step."),
    "skip": Word("skip", "The step's update was not applied."),
    "rollback": Word("rollback", "The run restarted from its last checkpoint and left the batch out."),
}
"""Reactions of a run to a faulty step, by its recipe."""

INJECTIONS: Mapping[str, Injection] = {
    "kill_worker": Injection("kill a worker", "A rank's process is killed (SIGKILL).", "rank", "worker_death"),
    "kill_agent": Injection("kill an agent", "The agent of a node is killed (SIGKILL).", "node", "agent_death"),
    "stop": Injection("stop a rank", "A rank's process is stopped (SIGSTOP).", "rank", "hang"),
    "delay": Injection("delay a rank", "A rank sleeps before every step from this one on.", "rank", "slow"),
    "drop_collective": Injection("drop a collective", "A rank does not come to a step's collectives.", "rank", "hang"),
    "fill_disk": Injection("fill the disk", "A rank finds no room for its part of a save.", "rank", "disk_full"),
    "flip_byte": Injection(
        "flip a byte",
        "A byte of the newest checkpoint is inverted, and a rank killed so that it is read.",
        "rank",
        "bad_checkpoint",
    ),
    "preempt": Injection("pre-empt the job", "All its processes are asked to leave (SIGTERM).", "job", "preempted"),
}
"""Faults that `trainyard run chaos` can inject into a running job."""
NODE_INJECTIONS: Mapping[str, Injection] = {
    "kill_supervisor": Injection(
        "kill the supervisor", "The supervisor of the job is killed (SIGKILL).", "job", "supervisor_death"
    ),
    "kill_node": Injection(
        "kill a node", "All processes of a node are killed at once (SIGKILL).", "node", "agent_death"
    ),
}
"""Faults that need nodes with processes of their own (`trainyard run chaos-nodes`)."""
ALL_INJECTIONS: Mapping[str, Injection] = {**INJECTIONS, **NODE_INJECTIONS}

TIMES: Mapping[str, Word] = {
    "good": Word("steps", "Steps that count: each once.", "#2f9e8f"),
    "init": Word("init", "From starting processes to the first step, without loading.", "#a9c9b4"),
    "load": Word("load", "Reading a checkpoint back.", "#c77aa8"),
    "save": Word("save", "Steps stalled for a checkpoint going out.", "#b5528c"),
    "recompute": Word("recompute", "Steps done again after a fault.", "#e6a23c"),
    "lost": Word("lost", "A step that a fault cut short, or whose update was not applied.", "#cf3f2e"),
    "stall": Word("stall", "From a fault until it was noticed.", "#d9632b"),
    "restart": Word(
        "restart", "From noticing a fault, or leaving for more nodes, until new processes were started.", "#8e62c9"
    ),
    "finish": Word("finish", "From the last step to the end.", "#a9adb5"),
}
"""Uses of a running job's time. Its goodput is `good` over the sum of all."""

METRICS: Mapping[str, Metric] = {
    "step_time": Metric("Step time", "The median measured step, each as long as its slowest rank.", "ns"),
    "tokens_per_s": Metric("Tokens a second", "Tokens of a step over the median step, all ranks.", "1/s", "higher"),
    "memory": Metric("Peak memory", "The largest peak of any rank.", "B"),
    "mfu": Metric("MFU", "Model FLOPs over what the devices' stated peak could have done.", "share", "higher"),
    "startup": Metric("Start-up", "From starting processes to the first step, without loading.", "ns"),
    "checkpoint_stall": Metric("Checkpoint stall", "All that steps waited for checkpoints going out.", "ns"),
    "compile_time": Metric("Compile time", "What a compiled job's first step took more than its median one.", "ns"),
}
"""Metrics that runs are compared by; any account of the mean ledger is a metric too (`metric`)."""

CHANGES: Mapping[str, Word] = {
    "step": Word("step", "From one point to the next the level is another, and stays.", "#cf3f2e"),
    "drift": Word("drift", "The level moves a little from point to point.", "#8e62c9"),
    "excursion": Word("excursion", "The level changed for a while and returned.", "#e0862b"),
    "spike": Word("spike", "A few points are far from the level, which did not change.", "#8a8f98"),
}
"""Kinds of change in a series with one figure per run."""

STATES: Mapping[str, Word] = {
    "complete": Word("complete", "The run ended and everything was written."),
    "failed": Word("failed", "It ended early; its measurements until then are stored."),
    "incomplete": Word("incomplete", "The run is still in progress, or was killed before it could record its end."),
    "damaged": Word("damaged", "Files of its record are missing or were altered: its figures cannot be trusted."),
}


def check(word: str, vocabulary: Mapping[str, object], noun: str) -> str:
    """Returns `word` if it is a key of `vocabulary`; otherwise raises `UnknownName` with the nearest known one. `noun`:
    names the vocabulary in the message."""
    if word not in vocabulary:
        raise UnknownName(f"{word!r} is not a {noun}.", nearest(word, vocabulary))
    return word


def check_dtype(dtype: str) -> str:
    """Returns `dtype` if it is one of `DTYPES`. Raises `UnknownName` if it is another number format, or not a name."""
    if dtype in _OTHER_DTYPES:
        raise UnknownName(
            f"the dtype {dtype!r} is not supported for training.", f"Supported: {', '.join(sorted(DTYPES))}."
        )
    return check(dtype, DTYPES, "dtype")


def metric(name: str) -> Metric:
    """The metric of that name or of that account. Raises `UnknownName` for a name that is neither."""
    if name in METRICS:
        return METRICS[name]
    kind, _, rest = name.partition("@")[0].partition("/")  # `comm/all_reduce@dp_replicate`
    if kind in KINDS and (rest in KINDS[kind].whats if KINDS[kind].whats else not rest):
        return Metric(name, "Exposed time of an account in the mean ledger.", "ns")
    known = f"{', '.join(METRICS)}, and accounts, such as comm/all_reduce@dp_replicate"
    raise UnknownName(f"{name!r} is not a metric.", near(name, METRICS) or f"Known: {known}.")
