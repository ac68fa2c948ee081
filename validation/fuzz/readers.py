"""The readers that are fuzzed: how each is called, where its decoding begins, which lines count, how inputs change.

A reader's modules are imported when it is first called, so that a worker can instrument them first. `read` returns
whether anything was decoded; it raises `BadInput` for what the reader refuses, and any other exception is a defect.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.errors import BadInput
from validation.fuzz import tables, trees, wire
from validation.fuzz.trees import Mutator

CORPUS = Path(__file__).parent / "corpus"
Read = Callable[[bytes, Path], bool]
"""From an input and a folder for its file to whether a record was decoded and kept."""


_MOST_WORDS = 400


class Reader(NamedTuple):
    """`decoding`: functions of which the first call means that the header has been passed, as `module:name`; for a file
    without a header, none. `longest`: bytes of an input."""

    read: Read
    modules: tuple[str, ...]
    mutate: Mutator
    decoding: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    longest: int = 8192


_WORD = re.compile(rb"[A-Za-z_][\w./:@#-]{1,40}")


def corpus(name: str) -> list[Path]:
    return sorted((CORPUS / name).iterdir())


def words(name: str) -> tuple[str, ...]:
    """The reader's own words, and those in its seeds."""
    seeds = (path.read_bytes() for path in corpus(name) if path.name.startswith("seed-"))
    in_seeds = (word.decode() for data in seeds for word in _WORD.findall(data))
    return tuple(dict.fromkeys((*READERS[name].words, *in_seeds)))[:_MOST_WORDS]


class Passed:
    """Whether an input has reached the decoding of records."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.once = False
        self._plain = not names
        for name in names:
            module, _, path = name.partition(":")
            *outer, last = path.split(".")
            owner: Any = import_module(module)
            for part in outer:
                owner = getattr(owner, part)
            setattr(owner, last, self._counted(getattr(owner, last)))

    def settle(self, error: BadInput) -> None:
        """A file without a header has passed when a field of it is refused by its path."""
        self.once |= self._plain and "`$" in str(error)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self.once = True
            return function(*args, **named)

        return call


def _file(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(file, data)
    finally:
        os.close(file)
    return path


def _profile(module: str, kind: str) -> Read:
    def read(data: bytes, folder: Path) -> bool:
        reader = getattr(import_module(module), kind)()
        path = _file(data, folder, "profile")
        reader.sniff(path)
        return bool(reader.read(path))

    return read


def _choose_chunks(data: bytes) -> None:
    """Every fourth input comes in several pieces, as large files do."""
    from trainyard.trace.readers.kineto import unpack

    unpack.CHUNK_BYTES = 512 if len(data) % 4 == 0 else 1 << 20


def _kineto(data: bytes, folder: Path) -> bool:
    """The scanner in Python and the compiled one must keep the same."""
    _choose_chunks(data)
    from trainyard.trace.readers.kineto.native import library
    from trainyard.trace.readers.kineto.reader import Kineto

    path = _file(data, folder, "profile")
    Kineto().sniff(path)
    results: list[Any] = []
    for pure in ("1", "") if library() is not None else ("1",):
        os.environ["TRAINYARD_PURE"] = pure
        try:
            results.append(Kineto().read(path))
        except BadInput as error:
            results.append(str(error))
        finally:
            del os.environ["TRAINYARD_PURE"]
    if not _same(results[0], results[-1]):
        raise AssertionError("the two scanners disagree")
    return not isinstance(results[0], str)


def _same(first: Any, second: Any) -> bool:
    """Whether two refusals, or the events of two scanners, are equal."""
    if isinstance(first, str) or isinstance(second, str):
        return first == second
    return len(first) == len(second) and all(a is b or flat(a) == flat(b) for a, b in zip(first, second))


def flat(struct: Any) -> dict[str, Any]:
    """Columns as lists, so that two results can be compared."""
    values = {name: getattr(struct, name) for name in struct.__struct_fields__}
    return {
        name: value.tolist() if hasattr(value, "tolist") else flat(value) if name in ("work", "host") else value
        for name, value in values.items()
    }


def _snapshot(data: bytes, folder: Path) -> bool:
    from trainyard.trace.memory import recognise, snapshot

    path = _file(data, folder, "snapshot")
    recognise.is_snapshot(path)
    return bool(snapshot.load(path))


def _mllog(data: bytes, folder: Path) -> bool:
    from trainyard.formats import mllog

    return sum(entry.number() is not None for entry in mllog.read(_file(data, folder, "log"))) > 0


def _run(data: bytes, folder: Path) -> bool:
    from trainyard.store import run_folder as runs

    _file(data, folder, "run.json")
    return bool(runs.read_head(folder))


def _samples(data: bytes, folder: Path) -> bool:
    from trainyard.store import run_folder as runs

    (folder / "samples").mkdir(exist_ok=True)
    _file(data, folder, "samples/rank0.jsonl")
    return bool(runs.read_samples(folder))


def _tags(data: bytes, folder: Path) -> bool:
    from trainyard.store import tags

    _file(data, folder, "tags.json")
    return bool(tags.read_tags(folder))


def _ledgers(data: bytes, folder: Path) -> bool:
    from trainyard import ledger

    return bool(ledger.from_json(data))


def _job(data: bytes, folder: Path) -> bool:
    from trainyard import job_file

    return bool(job_file.load(_file(data, folder, "job.toml")))


def _machine(data: bytes, folder: Path) -> bool:
    from trainyard import machine

    return bool(machine.load(str(_file(data, folder, "machine.toml"))))


def _config(data: bytes, folder: Path) -> bool:
    """Half of the inputs as `trainyard plan` reads them, half as a job file takes them."""
    from trainyard.models import hugging_face_architectures

    return bool(hugging_face_architectures.model(data, "folder/config.json", planned=len(data) % 2 == 0))


@cache
def _context() -> tuple[Any, ...]:
    import msgspec

    from trainyard.model import Model
    from trainyard.models import presets
    from trainyard.predict.configs.config_keys import CommandArguments

    return (
        CommandArguments(),
        CommandArguments(64),
        CommandArguments(64, 256, msgspec.convert(presets.load("llama3-8b").model, Model)),
    )


def _framework(data: bytes, folder: Path) -> bool:
    """With nothing given by the command line, with the number of devices, and with all that it can give."""
    from trainyard.predict.configs import detect_format

    return _any([partial(detect_format.read, data, "x", context) for context in _context()])


def _benchmarks(data: bytes, folder: Path) -> bool:
    """The only benchmark of the file, or one of those in the seeds."""
    from trainyard.compare.history.sources import benchmark_files

    path = _file(data, folder, "kept.json")
    names = (None, "test_bench.py::test_sum", "benchmarks.time_sum")
    return benchmark_files.is_benchmark_file(path) and _any(
        [partial(benchmark_files.load, path, name) for name in names]
    )


def _any(calls: Sequence[Callable[[], object]]) -> bool:
    """Raises the last refusal if all of them refuse."""
    refusals: list[BadInput] = []
    for call in calls:
        try:
            call()
        except BadInput as error:
            refusals.append(error)
    if len(refusals) == len(calls):
        raise refusals[-1]
    return True


def _series(ending: str) -> Read:
    def read(data: bytes, folder: Path) -> bool:
        from trainyard.compare.history.sources import series

        return bool(series.load(_file(data, folder, f"series{ending}"), "value"))

    return read


_TRACE, _READERS, _CONFIGS = "trainyard.trace", "trainyard.trace.readers", "trainyard.predict.configs"
_KINETO, _PROTOBUF = f"{_READERS}.kineto", "trainyard.formats.protobuf"
_ROWS = (f"{_READERS}.gather:Gather._has_times",)
"""Called for each span and each interval of a device that a reader found."""
_EVENT_KEYS = (
    "traceEvents", "ph", "X", "cat", "name", "ts", "dur", "pid", "tid", "args", "kernel", "gpu_memcpy", "gpu_memset",
    "cpu_op", "Operator", "user_annotation", "gpu_user_annotation", "python_function", "cuda_runtime", "cuda_sync",
    "correlation", "External id", "external id", "device", "stream", "Sequence number", "Fwd thread id", "bytes",
    "est. achieved occupancy %", "wait_on_stream", "Stream Wait Event", "Collective name", "Input Dims", "Input type",
    "Concrete Inputs", "Process Group Name", "Process Group Ranks", "In msg nelems", "dtype", "Seq", "Group size",
    "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name", "rank", "world_size", "pg_config",
    "pg_name", "pg_size", "ProfilerStep#2", "Optimizer.step#SGD.step", "gloo:all_reduce", "nccl:all_gather",
    "cudaLaunchKernel", "stream 7", "12.5", "4458676416788.066",
)  # fmt: skip
_ALLOCATOR_KEYS = (
    "segments", "device_traces", "allocator_settings", "external_annotations", "blocks", "address", "total_size",
    "size",
    "requested_size", "real_size", "state", "active_allocated", "active_pending_free", "inactive", "frames", "history",
    "filename", "line", "name", "action", "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap", "oom", "snapshot", "user_defined", "device_free", "addr", "stream", "time_us",
    "category", "compile_context", "user_metadata", "is_expandable", "segment_type", "small", "device", "??", "none",
    "model.py(12): forward",
)  # fmt: skip
_SPEED_KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization", "stage",
    "fp16", "bf16", "bfloat16", "enabled", "optimizer", "type", "params", "pipeline", "stages", "tensor_parallel",
    "autotp_size", "sequence_parallel_size", "activation_checkpointing", "cpu_checkpointing", "offload_optimizer",
    "device", "cpu", "zero_hpz_partition_size", "mics_shard_size", "torch_autocast", "dtype", "data_types",
    "grad_accum_dtype", "expert_parallel", "auto", "Adam", "AdamW",
)  # fmt: skip
_MEGATRON_KEYS = (
    "--num-layers", "--hidden-size", "--num-attention-heads", "--num-experts", "--moe-layer-freq",
    "--moe-shared-expert-intermediate-size", "--expert-model-parallel-size", "--context-parallel-size",
    "--cp-comm-type",
    "--pipeline-model-parallel-layout", "--num-virtual-stages-per-pipeline-rank", "--recompute-granularity",
    "--fp8-format", "--num-layers-per-virtual-pipeline-stage", "--recompute-num-layers", "--recompute-method",
    "--multi-latent-attention", "--use-precision-aware-optimizer", "--exp-avg-dtype", "--norm-epsilon", "--rotary-base",
    "--optimizer", "--hybrid-override-pattern", "full", "selective", "uniform", "block", "Et*2|t|L", "\\", "#", "$X",
)  # fmt: skip
_NSYS_WORDS = (
    "StringIds", "id", "value", "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "globalTid",
    "nameId", "text", "textId", "eventType", "demangledName", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graphId", "syncType",
    "eventId", "bytes", "copyKind", "ProfilerStep#8", "ncclAllGather", "aten::mm, seq = 3, op_id = 1", "Hostname",
)  # fmt: skip

READERS: dict[str, Reader] = {
    "kineto": Reader(
        _kineto,
        (
            *(f"{_KINETO}.{name}" for name in ("reader", "document", "rows", "scanner", "event")),
            f"{_READERS}.collectives",
        ),
        trees.json_document,
        (f"{_KINETO}.reader:_check_launches",),
        _EVENT_KEYS,
    ),
    "rocprof": Reader(
        _profile(f"{_READERS}.rocprof", "Rocprof"),
        (f"{_READERS}.rocprof", f"{_READERS}.whole_files", f"{_READERS}.gather", f"{_READERS}.annotate"),
        trees.json_document,
        _ROWS,
    ),
    "pftrace": Reader(
        _profile(f"{_READERS}.pftrace", "Pftrace"),
        (f"{_READERS}.pftrace", _PROTOBUF, f"{_READERS}.gather", f"{_READERS}.annotate"),
        wire.message(wire.PERFETTO),
        _ROWS,
        ("hip_api", "rccl_api", "marker_api", "kernel_dispatch", "memory_copy", "corr_id", "tid", "dst_agent",
         "Agent 1",
         "copy_bytes", "STREAM [3]", "QUEUE [2]", "ProfilerStep#4", "MEMORY_COPY_DEVICE_TO_HOST"),
    ),
    "xplane": Reader(
        _profile(f"{_READERS}.xplane", "Xplane"),
        (f"{_READERS}.xplane", f"{_READERS}.hlo", _PROTOBUF, f"{_READERS}.gather"),
        wire.message(wire.XPLANE),
        _ROWS,
        ("/device:GPU:0", "/device:TPU:1", "/device:TPU:x", "/host:CPU", "/host:CUPTI", "XLA Ops", "Steps",
         "Stream #3(x)",
         "correlation_id", "hlo_op", "hlo_category", "tf_op", "step_num", "memcpy_details", "bytes_accessed",
         "MemcpyD2H", "Memset 3", "%all-gather-start.1 = f32[8] all-gather-start(f32[8] %g)",
         "%all-gather-done.2 = f32[8] all-gather-done(f32[8] %all-gather-start.1)", "%while.1 = (s32[]) while(%t)",
         "jit(step)/transpose(jvp(A))/rematted_computation/dot_general"),
    ),
    "nsys": Reader(
        _profile(f"{_READERS}.nsys", "Nsys"),
        (f"{_READERS}.nsys", f"{_READERS}.gather", f"{_READERS}.annotate"),
        tables.database,
        _ROWS,
        _NSYS_WORDS,
        32768,
    ),
    "neuron": Reader(
        _profile(f"{_READERS}.neuron", "Neuron"),
        (
            f"{_READERS}.neuron",
            f"{_READERS}.neuron_opcodes",
            f"{_READERS}.interval_sets",
            f"{_READERS}.json_keys",
            f"{_READERS}.whole_files",
            f"{_READERS}.hlo",
            f"{_READERS}.gather",
        ),
        trees.json_document,
        _ROWS,
        ("summary", "instruction", "timestamp", "duration", "label", "opcode", "hlo_name", "nc_idx", "trace_events",
         "MATMUL", "%all-reduce.1 = f32[8] all-reduce(%a)", "EVENT_SEMAPHORE", "DRAIN", "dma", "subgroup", "Q0-E3",
         "aggregated", "packet_aggregation_id", "is_cc_dma", "active_time", "engine", "start_ts", "end_ts", "warnings",
         "message", "dma_queues_info", "q_name", "q_idx", "q_eng_idx", "total_active_time", "layer"),
    ),
    "snapshot": Reader(
        _snapshot,
        (f"{_TRACE}.memory.snapshot", "trainyard.formats.plain_pickle"),
        trees.pickle_document,
        (f"{_TRACE}.memory.snapshot:_SnapshotReading.segments",),
        _ALLOCATOR_KEYS,
    ),
    "mllog": Reader(
        _mllog, ("trainyard.formats.mllog",), trees.lines, (), (":::MLLOG {", ":::MLLOG", "key", "value", "metadata")
    ),
    "run": Reader(_run, ("trainyard.store.run_folder", "trainyard.record", "trainyard.job"), trees.json_document),
    "samples": Reader(_samples, ("trainyard.store.run_folder",), trees.lines, (), ("loss", "step", "rank", "attempt")),
    "tags": Reader(_tags, ("trainyard.store.tags",), trees.json_document),
    "ledgers": Reader(
        _ledgers, ("trainyard.ledger",), trees.json_document, ("trainyard.ledger:decode_hook",),
        ("compute/matmul", "comm/all_gather@dp_shard", "straggler", "bubble", "ns", "hidden_ns", "phase", "unions"),
    ),
    "job": Reader(
        _job, ("trainyard.job_file", "trainyard.job", "trainyard.models.presets"), trees.toml_document,
        ("trainyard.job_file:_converted",),
        ("model", "sizes", "from", "without", "layout", "recipe", "measure", "llama3-8b", "resnet50", "job.toml", "tp"),
    ),
    "machine": Reader(
        _machine, ("trainyard.machine",), trees.toml_document, (),
        ("device", "host", "links", "memory", "value", "source", "date", "as_of", "peaks", "per_node", "nodes"),
    ),
    "config": Reader(
        _config,
        tuple(f"trainyard.models.{name}" for name in ("hugging_face", "hugging_face_keys", "hugging_face_hybrids")),
        trees.json_document,
        ("trainyard.models.hugging_face_config:Config.whole",),
        ("LlamaForCausalLM", "MixtralForCausalLM", "GPT2LMHeadModel", "DeepseekV3ForCausalLM", "Qwen2ForCausalLM",
         "rope_scaling", "rope_theta", "rope_parameters", "rope_type", "layer_types", "hybrid_override_pattern"),
    ),
    "megatron": Reader(
        _framework,
        tuple(f"{_CONFIGS}.{name}" for name in (
            "detect_format", "config_keys", "megatron.megatron_read", "megatron.megatron_hybrid",
            "megatron.megatron_model", "megatron.megatron_stages",
        )),
        trees.lines,
        (f"{_CONFIGS}.config_keys:ConfigKeys.get",),
        _MEGATRON_KEYS,
    ),
    "torchtitan": Reader(
        _framework,
        tuple(f"{_CONFIGS}.{name}" for name in (
            "detect_format", "config_keys", "torchtitan.torchtitan_read", "torchtitan.flavors"
        )),
        trees.toml_document,
        (f"{_CONFIGS}.config_keys:ConfigKeys.get",),
        ("parallelism", "training", "model", "flavor", "seq_len", "tensor_parallel_degree", "pipeline_parallel_degree",
         "pipeline_parallel_schedule", "Interleaved1F1B", "activation_checkpoint", "mode", "selective", "8B", "llama3"),
    ),
    "deepspeed": Reader(
        _framework,
        tuple(f"{_CONFIGS}.{name}" for name in ("detect_format", "config_keys", "deepspeed.deepspeed_json")),
        trees.json_document,
        (f"{_CONFIGS}.config_keys:ConfigKeys.get",),
        _SPEED_KEYS,
    ),
    "benchmarks": Reader(
        _benchmarks,
        ("trainyard.compare.history.sources.benchmark_files",),
        trees.json_document,
        (
            "trainyard.compare.history.sources.benchmark_files:_read_pytest_benchmark",
            "trainyard.compare.history.sources.benchmark_files:_read_asv",
        ),
        ("benchmarks", "machine_info", "stats", "median", "fullname", "commit_info", "datetime", "results", "params",
         "result_columns", "commit_hash", "env_name", "date", "version", "machine"),
    ),
    "series-json": Reader(
        _series(".json"), ("trainyard.compare.history.sources.series",), trees.json_document,
        ("trainyard.compare.history.sources.series:_point",), ("value", "when", "commit", "points", "values"),
    ),
    "series-csv": Reader(
        _series(".csv"), ("trainyard.compare.history.sources.series",), trees.lines,
        ("trainyard.compare.history.sources.series:_point",), ("value", "when", "commit", '"', '""', "1.5"),
    ),
}  # fmt: skip
