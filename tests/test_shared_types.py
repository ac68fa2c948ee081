"""Shared types: errors, words, units, machines, jobs, costs, events, records, plans, findings, plugins."""

import tomllib

import msgspec
import numpy as np
import pytest

from tests.refused import refused
from trainyard import errors, events, job, job_file, machine, plugins, units, words
from trainyard.cost import Estimate, Operation, collective, roofline
from trainyard.entry_points import EntryPoint
from trainyard.errors import BadFile, BadInput, BadJob, MissingFile, TrainyardError, UnknownName, nearest
from trainyard.finding import Finding, Remedy, severity
from trainyard.layout import Layout
from trainyard.ledger import Account, Entry, Ledger
from trainyard.machine import Claim, Device, Link, RateCurve
from trainyard.model import Model
from trainyard.plan import Plan
from trainyard.recipe import Recipe
from trainyard.record import Run, Sample

# Errors


def test_an_error_says_what_and_what_next():
    error = BadInput("no good.", "Do better.")
    assert str(error) == "no good. Do better."
    assert str(BadInput("no good.")) == "no good."
    assert isinstance(error, ValueError)


def test_exit_codes_are_the_designs():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TrainyardError)]
    codes = {kind.__name__: kind.exit_code for kind in kinds}
    assert codes == {
        "TrainyardError": 70,
        **dict.fromkeys(("BadInput", "BadFile", "BadJob", "BadLedger", "UnknownName"), 2),
        **dict.fromkeys(("MissingFile", "DamagedFile", "FileTooLarge", "UnknownRevision", "WrongRunState"), 2),
        "NotEnoughEvidence": 3,
        **dict.fromkeys(
            ("EnvironmentFailed", "MissingLibrary", "PlaceUnwritable", "PortInUse", "Preempted", "RankDied"), 4
        ),
        **dict.fromkeys(
            ("CommandFailed", "DeviceUnusable", "DiskFull", "MissingProgram", "RemoteFailed", "RunInUse", "WorkerDied"),
            4,
        ),
        **dict.fromkeys(("HostFailed", "SchedulerFailed", "TrainingStopped"), 4),
    }


def test_the_nearest_name_or_all_that_are_known():
    assert nearest("haeds", ["heads", "layers"]) == "Did you mean 'heads'?"
    assert nearest("zzz", ["heads", "layers"]) == "Known: heads, layers."
    assert nearest("zzz", []) == "None is known."


# Words and units


def test_an_unknown_word_is_refused_with_the_nearest():
    assert words.check("forward", words.PHASES, "phase") == "forward"
    with refused(UnknownName, "foward", "phase", "forward"):
        words.check("foward", words.PHASES, "phase")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (units.show_time(418_000_000), "418.0 ms"),
        (units.show_time(999), "999 ns"),
        (units.show_time(-1500), "-1.5 µs"),
        (units.show_time(12_340_000_000, 2), "12.34 s"),
        (units.show_ns(215769424), "215,769,424"),
        (units.show_size(66_000_000_000), "61.5 GiB"),
        (units.show_size(1023), "1023 B"),
        (units.show_count(19_600), "19.6 k"),
        (units.show_count(7), "7"),
        (units.show_rate(3.1e12, "FLOP/s"), "3.1 TFLOP/s"),
        (units.show_rate(0.25, "step/s", 2), "0.25 step/s"),
        (units.show_share(15.6, 100), "15.6 %"),
        (units.show_share(1, 0), "–"),
        (units.show_share(1, 10**6), "<0.1 %"),
        (units.show_share(1, 10**6, 0), "<1 %"),
        (units.counted(1, "table"), "1 table"),
        (units.counted(2000, "copy", "copies"), "2,000 copies"),
    ],
)
def test_quantities_are_shown_in_one_manner(shown, expected):
    assert shown == expected


def test_quantities_are_read_exactly():
    assert units.parse_size("80 GB") == 80 * 10**9
    assert units.parse_size("1,024 KiB") == 2**20


# Machines


def claim(value, unit="x", **fields):
    return Claim(value=value, unit=unit, source="a test", **fields)


@pytest.mark.parametrize("name", sorted(machine.known()))
def test_every_machine_file_makes_sense(name):
    loaded = machine.load(name)
    assert loaded.name == name
    assert loaded.device.vendor in words.VENDORS
    peaks = loaded.device.peak
    assert peaks, "a known accelerator states a peak"
    order = [dtype for dtype in ("float32", "tf32", "float16", "float8", "float4") if dtype in peaks]
    assert [peaks[dtype].value for dtype in order] == sorted(peaks[dtype].value for dtype in order)
    for op, curve in loaded.device.achieved.items():
        assert op in words.OP_CLASSES
        assert curve.claim.measured
        assert curve.points[-1][1] == curve.claim.value < peaks["bfloat16"].value
    for link in filter(None, (loaded.intra_node, loaded.inter_node)):
        assert 1e9 < link.bandwidth.value < 2e12, "bytes a second of one device and direction"
        assert 1e-7 < link.latency.value < 1e-4
        assert not link.latency.measured
    for known_claim in claims(loaded):
        assert len(known_claim.source) > 10


def claims(value):
    """Every claim inside a noun."""
    if isinstance(value, Claim):
        yield value
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from claims(getattr(value, field))
    elif isinstance(value, dict):
        for part in value.values():
            yield from claims(part)


def test_machine_names_and_aliases_are_unique():
    devices = [machine.load(name).device for name in machine.known()]
    names = [name.lower() for device in devices for name in (device.name, *device.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ("NVIDIA A100-PG509-200", "a100-40gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("nvidia h200 ", "h200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("Tesla V100-DGXS-32GB", "v100-32gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI325X", "mi325x"),
        ("AMD Instinct MI250X", "mi250x"),
        ("TPU v5", "tpu-v5p"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v4", "tpu-v4"),
        ("trn2.48xlarge", "trn2"),
    ],
)
def test_what_drivers_and_traces_report_finds_its_device(reported, expected):
    assert machine.find_device(reported) == machine.load(expected).device


@pytest.mark.parametrize(
    "reported", ["", "cpu", "*", "NVIDIA H200 NVL", "NVIDIA H100 PCIe", "NVIDIA A100-PCIE-40GB", "TPU v4 lite"]
)
def test_a_device_nobody_described_is_not_guessed(reported):
    assert machine.find_device(reported) is None


def test_device_names_are_read_from_lines_as_from_the_whole_file():
    for name, path in machine.known().items():
        device = machine.load(name).device
        assert machine._device_names(path) == (device.name, *device.aliases)


def test_a_machine_that_is_not_there_or_not_right(tmp_path):
    with refused(UnknownName, "h10O", "h100"):
        machine.load("h10O")
    path = tmp_path / "box.toml"
    good = machine.known()["h100"].read_text("utf-8")
    path.write_text(good, "utf-8")
    assert machine.load(str(path)) == machine.load("h100")
    for text, *values in (
        ("name = ", "end of document"),
        (good.replace("[intra_node]", "[intra_nod]"), "intra_nod"),
        (good.replace('vendor = "nvidia"', 'vendor = "nvidea"'), "nvidea", "nvidia", "$.device"),
        (good.replace("value = 3.35e12", "value = -3.35e12"), "-3350000000000.0 bytes/s", "$.device.bandwidth"),
        (good.replace("value = 3.35e12", "value = nan"), "nan bytes/s", "$.device.bandwidth"),
        (good.replace("value = 450e9", "value = 0"), "NVLink 4", "0 bytes/s", "$.intra_node"),
        (good.replace("per_node = 8", "per_node = 0"), "1 nodes", "0 devices"),
        (good.replace("[[111669149696.0", "[[0.0"), "[0.0]", "$.device.achieved[...]"),
        (good.replace("794.5e12]]", "0.0]]"), "[0.0]", "$.device.achieved[...]"),
        (good.replace("float32 =", "float31 ="), "float31", "float32", "$.device"),
    ):
        path.write_text(text, "utf-8")
        with refused(BadFile, path, *values):
            machine.load(str(path))
    path.write_bytes(b"\xff\xfe")
    with refused(BadFile, path, "0xff"):
        machine.load(str(path))


def test_a_machine_counts_its_devices():
    box = machine.load("h100")
    assert msgspec.structs.replace(box, nodes=4).devices == 32


# Jobs


def test_an_example_job_reads_as_written(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "small"\n[model]\nlayers = 2\nhidden_size = 64\nffn_hidden_size = 128\n'
        "heads = 4\nkv_heads = 2\nhead_dim = 16\n"
        "[layout]\ndp_replicate = 2\n[recipe]\nseq_len = 32\ntokens_per_step = 256\n",
        "utf-8",
    )
    read = job_file.load(path)
    assert (read.name, read.model.layers, read.layout.ranks, read.accumulate) == ("small", 2, 2, 4)
    assert str(read.layout) == "dp_replicate 2"
    assert str(Layout()) == "one rank"


def test_a_job_file_that_cannot_be_read(tmp_path):
    with refused(MissingFile, tmp_path / "none.toml"):
        job_file.load(tmp_path / "none.toml")
    with refused(BadFile, tmp_path, "Errno 21"):
        job_file.load(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\x00")
    with refused(BadFile, tmp_path / "binary.toml", "0xff"):
        job_file.load(tmp_path / "binary.toml")
    (tmp_path / "bad.toml").write_text("[model", "utf-8")
    with refused(BadJob, tmp_path / "bad.toml", "TOML", "']'"):
        job_file.load(tmp_path / "bad.toml")


def test_a_layout_larger_than_the_machine_shows_the_arithmetic():
    model = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)
    wide = job.Job(
        model=model,
        recipe=Recipe(seq_len=8, tokens_per_step=64),
        layout=Layout(dp_shard=8, tp=4, pp=4),
    )
    with refused(BadJob, "$.layout", "dp_shard 8 * tp 4 * pp 4 = 128 ranks", "the machine", 64, "dp_shard to 4"):
        wide.check_fits(64, "the machine")


# Costs


def test_a_roofline_by_hand():
    device = Device(
        name="box",
        vendor="pretend",
        memory=claim(1e9),
        bandwidth=claim(1e9),
        peak={"float32": claim(1e12)},
        achieved={"matmul": RateCurve(points=((1e9, 5e11),), claim=claim(5e11))},
    )
    work = Operation(op="matmul", phase="forward", count=2, flops=10**9, bytes=4 * 10**6)
    assert roofline(device, work) == Estimate(low=4_000_000, expect=4_000_000, high=6_000_000)


def test_an_all_reduce_by_hand():
    link = Link(name="wire", kind="host", bandwidth=claim(1e9), latency=claim(1e-6))
    # 2 * 3/4 of a megabyte at 1 GB/s, and six hops of a microsecond.
    assert collective(link, "all_reduce", 4, 10**6) == Estimate(low=1_500_000, expect=1_506_000, high=3_006_000)
    assert collective(link, "all_reduce", 1, 10**6) == Estimate(0, 0, 0)
    assert collective(link, "barrier", 4, 0) == Estimate(6_000, 6_000, 6_000)


# Events, records, plans, findings


def test_the_window_of_events_is_the_devices_then_the_marks_then_the_span():
    none = np.empty(0, np.int64)
    no_work = events.DeviceWork(**dict.fromkeys(set(events.DeviceWork.__struct_fields__) - {"collectives"}, none))
    host = events.HostSpans(**dict.fromkeys(set(events.HostSpans.__struct_fields__) - {"collectives"}, none))
    bare = events.Events(source="x", names=(), work=no_work, host=host, marks=(), span=(0, 9))
    assert (len(bare.work), len(bare.host), bare.window) == (0, 0, (0, 9))
    marks = (events.StepMark(label="0", start=1, stop=3), events.StepMark(label="1", start=3, stop=7))
    assert msgspec.structs.replace(bare, marks=marks).window == (1, 7)
    column = np.array([4, 5], np.int64)
    work = msgspec.structs.replace(no_work, start=column, stop=column + np.array([9, 2]))
    assert msgspec.structs.replace(bare, marks=marks, work=work).window == (4, 13)


def small_job():
    model = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)
    return job.Job(model=model, recipe=Recipe(seq_len=8, tokens_per_step=8))


def test_figures_are_made_of_samples_without_warmup_and_profiler():
    def sample(step, **flags):
        return Sample(step=step, rank=0, repeat=0, wall_ns=1, tokens=8, loss=5.5, memory_bytes=1, **flags)

    run = Run(
        id="r", job=small_job(), started="", samples=(sample(0, warmup=True), sample(1), sample(2, profiled=True))
    )
    assert [kept_sample.step for kept_sample in run.measured()] == [1]


def test_a_plan_lies_within_its_bounds_and_is_predicted():
    entry = Entry(account=Account("compute", "matmul"), ns=10, how="modelled")
    predicted = Ledger(wall_ns=10, entries=(entry,), basis="predicted")
    assert Plan(job=small_job(), ledger=predicted, low=10, high=12, memory={}).ledger is predicted
    with refused(BadInput, "10 ns", "11 to 12"):
        Plan(job=small_job(), ledger=predicted, low=11, high=12, memory={})
    with refused(BadInput, "predicted", "measured"):
        Plan(job=small_job(), ledger=Ledger(wall_ns=10, entries=(entry,)), low=1, high=12, memory={})


def test_a_finding_is_priced_and_weighed():
    account = Account("straggler", "all_reduce", "dp_shard")
    finding = Finding(
        rule="r", severity="high", account=account, cost_ns=5, summary="x.", remedy=Remedy(description="y.")
    )
    assert (finding.priced, finding.recoverable_ns, finding.weight) == ("bound", 5, 5.0)
    unrecoverable = msgspec.structs.replace(finding, priced="none")
    assert (unrecoverable.recoverable_ns, unrecoverable.weight) == (0, 0.0)
    assert [severity(cost, 1000) for cost in (100, 99, 30, 29)] == ["high", "medium", "medium", "low"]
    for kind, value, wrong in (
        (BadInput, "confidence = 1.5", {"confidence": 1.5}),
        (BadInput, "-1 ns", {"cost_ns": -1}),
        (UnknownName, "'dire'", {"severity": "dire"}),
        (UnknownName, "'guessed'", {"priced": "guessed"}),
    ):
        with refused(kind, value):
            msgspec.structs.replace(finding, **wrong)


# Plugins


def test_the_installed_plugins_are_those_of_pyproject(root):
    """They differ if the package was not installed again after an entry point was added."""
    groups = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    for group in plugins.PROTOCOLS:
        installed = {name: point.value for name, point in plugins.names(group).items()}
        built_in = {name: value for name, value in installed.items() if value.startswith("trainyard.")}
        assert built_in == groups[f"trainyard.{group}"]


class Half:
    """A vendor that lacks everything but its devices."""

    def devices(self):
        return ()


@pytest.fixture
def no_groups_listed():
    plugins.names.cache_clear()
    yield
    plugins.names.cache_clear()


def test_a_plugin_is_checked_when_it_is_loaded(monkeypatch, no_groups_listed):
    def found(group):
        assert group == "trainyard.vendors"
        return [EntryPoint(name="half", value=f"{__name__}:Half")]

    monkeypatch.setattr(plugins, "entry_points", found)
    monkeypatch.setattr(EntryPoint, "load", lambda _: Half)
    with refused(BadInput, "vendors", "half", "kernel_account, peaks, telemetry"):
        plugins.load("vendors", "half")
    with refused(UnknownName, "vendors", "halv", "half"):
        plugins.load("vendors", "halv")
    with refused(UnknownName, "vendor", "vendors"):
        plugins.names("vendor")
