"""Steps of files without marks: how many are inferred, from which evidence, and when none are."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.align.training_trace import UPDATE, Recording
from tests.trace_maker import MAIN, trace, write
from trainyard.trace.align.infer_steps import MIN_CONFIDENCE
from trainyard.trace.measure import measure, read

DEVICES = [False, True]


def measured(folder, recording, **facts):
    return measure(read([write(folder, recording.document(**facts))]))


def steps(result, rank=0):
    """Labels of the full steps and the evidence."""
    trace = result.ranks[rank]
    return [part.label for part in trace.parts if part.kind == "step"], trace.events.inferred


@pytest.mark.parametrize("on_device", DEVICES)
def test_optimizer_steps_divide_the_window(tmp_path, on_device):
    recording = Recording(on_device)
    for _ in range(30):
        recording.train()
    labels, inferred = steps(measured(tmp_path, recording))
    first = 2 if on_device else 1  # idle time before a device's first work lies outside the window
    assert labels == [str(number) for number in range(first, 31)]
    assert inferred.source == "optimizer"
    assert inferred.confidence > 0.9


@pytest.mark.parametrize("on_device", DEVICES)
def test_inferred_steps_have_the_length_of_marked_ones(tmp_path, on_device):
    def mean_of(marked, folder):
        recording = Recording(on_device)
        for number in range(12):
            recording.train(str(number) if marked else None)
            recording.rest(10)
        return measured(folder, recording).mean.wall_ns

    (tmp_path / "marked").mkdir()
    assert mean_of(False, tmp_path) == mean_of(True, tmp_path / "marked")


@pytest.mark.parametrize("on_device", DEVICES)
def test_accumulated_gradients_are_one_step(tmp_path, on_device):
    recording = Recording(on_device)
    for _ in range(8):
        recording.train(micro_batches=4)
    labels, inferred = steps(measured(tmp_path, recording))
    assert len(labels) == 8 - on_device
    assert inferred.source == "optimizer"


def test_first_step_creates_the_state_of_the_optimizer(tmp_path):
    recording = Recording()
    recording.fetch()
    recording.forward()
    recording.backward()
    recording.inside(
        "Optimizer.step#Adam.step", lambda: [recording.op(name) for name in ["aten::zeros_like"] * 12 + [UPDATE]]
    )
    for _ in range(7):
        recording.train()
    result = measured(tmp_path, recording)
    assert [part.kind for part in result.ranks[0].parts[:2]] == ["cut", "step"]
    assert steps(result)[0] == [str(number) for number in range(1, 9)]


@pytest.mark.torch
@pytest.mark.parametrize("calls_closure", [False, True])
def test_recorded_training_loop_without_marks(tmp_path, calls_closure):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(96, 16))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    with torch.profiler.profile() as profiler:
        for number, (batch,) in enumerate(loader):

            def closure(batch=batch):
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure) if calls_closure else (closure(), optimizer.step())
            if number == 5:
                with torch.no_grad():
                    for (images,) in loader:
                        model(images).argmax(1)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    result = measure(read([path]))
    assert result.steps.how == "inferred"
    labels = [part.label for part in result.ranks[0].parts]  # a step may be long on a busy machine, and then warm-up
    assert [label for label in labels if label.isdigit()] == [str(number) for number in range(1, 13)]
    assert [label for label in labels if "evaluation" in label] == ["6 evaluation"]


@pytest.mark.parametrize("on_device", DEVICES)
def test_long_first_steps_are_warm_up(tmp_path, on_device):
    recording = Recording(on_device)
    for number in range(12):
        recording.train(ns=5000 if number in (0, 1, 6) else 20)
    result = measured(tmp_path, recording)
    kind_of = {part.label: part.kind for part in result.ranks[0].parts}
    first = "cut" if on_device else "warmup"
    assert [kind_of[label] for label in ("1", "2", "3", "7", "8")] == [first, "warmup", "step", "step", "step"]
    assert [step.label for step in result.steps.long] == ["7"]


def test_several_optimizers_after_one_backward_pass_are_one_step(tmp_path):
    recording = Recording()
    for _ in range(8):
        recording.train(optimizers=("Optimizer.step#Adam.step", "Optimizer.step#SGD.step", "Optimizer.step#Adam.step"))
    labels, inferred = steps(measured(tmp_path, recording))
    assert len(labels) == 8
    assert "3 per step" in inferred.evidence


def test_optimizers_that_take_turns_are_one_step(tmp_path):
    """A generator and a discriminator on one batch, with optimizers of the same class."""
    recording = Recording()
    for _ in range(8):
        recording.fetch()
        for passes in (2, 1):
            for _ in range(passes):
                recording.forward()
                recording.backward()
            recording.update()
    labels, _ = steps(measured(tmp_path, recording))
    assert len(labels) == 8


def test_optimizer_annotations_around_launches_divide_the_window(tmp_path):
    """A file with annotations and driver calls, but no ops."""
    device, host, at = [], [], 0
    for _ in range(10):
        for name in ("gemm", "gemm", "elementwise_kernel"):
            device.append((name, 7, at + 4, at + 9, at))
            at += 10
        host.append(("Optimizer.step#SGD.step", MAIN, at, at + 10, "user_annotation"))
        device.append(("multi_tensor_apply_kernel", 7, at + 4, at + 9, at + 1))
        at += 15
    labels, inferred = steps(measure(read([write(tmp_path, trace(device=device, host=host))])))
    assert len(labels) == 9
    assert inferred.source == "optimizer"


def test_batches_divide_inference(tmp_path):
    recording = Recording()
    for _ in range(10):
        recording.fetch()
        recording.forward(with_gradients=False)
    labels, inferred = steps(measured(tmp_path, recording))
    assert len(labels) == 10
    assert inferred.source == "loader"


def test_repeated_annotation_divides_a_window_without_optimizer(tmp_path):
    recording = Recording()
    for number in range(9):
        recording.inside(f"decode step {number}", lambda: recording.forward(with_gradients=False))
    labels, inferred = steps(measured(tmp_path, recording))
    assert len(labels) == 9
    assert inferred.source == "annotation"


def test_annotation_of_rare_work_is_not_a_step(tmp_path):
    recording = Recording()
    for number in range(12):
        recording.train()
        if number % 4 == 0:
            recording.inside("log_step", lambda: recording.op("aten::item", kernel=None))
    labels, inferred = steps(measured(tmp_path, recording))
    assert len(labels) == 12
    assert inferred.source == "optimizer"


def test_cut_off_steps_at_the_edges_are_left_out(tmp_path):
    recording = Recording()
    recording.backward()
    recording.update()
    for _ in range(6):
        recording.train()
    recording.fetch()
    recording.forward()
    result = measured(tmp_path, recording)
    parts = [(part.label, part.partial) for part in result.ranks[0].parts]
    assert parts == [("before", True), *((str(number), False) for number in range(1, 7)), ("after", True)]


def test_contradicting_evidence_keeps_the_whole_window(tmp_path):
    """Each batch is annotated twice as often in one half of the window as in the other, and optimizer steps are not."""
    recording = Recording()
    for number in range(12):
        recording.train()
        if number % 3 == 0:
            recording.fetch()
            recording.fetch()
    for _ in range(12):
        recording.fetch()
    result = measured(tmp_path, recording)
    inferred = result.ranks[0].events.inferred
    if inferred.source:
        assert inferred.confidence >= MIN_CONFIDENCE
    else:
        assert [part.label for part in result.ranks[0].parts] == ["window"]


def test_few_unlike_spans_are_not_steps(tmp_path):
    recording = Recording()
    for name in ("load", "train_step", "train_step", "save"):
        recording.inside(name, recording.forward)
    result = measured(tmp_path, recording)
    assert [part.label for part in result.ranks[0].parts] == ["window"]
    assert result.steps.how == "window"


def kernels(steps, layers, at=0, copies=True, gap=40):
    """Rows of a decoder without host spans: an embedding, equal layers, a head, and a copy of the token."""
    rows = []
    for step in range(steps):
        names = ["embed", *["norm", "qkv_gemm", "attention", "out_gemm", "mlp_gemm", "add"] * layers, "head", "argmax"]
        if step % 5 == 4:
            names.insert(8, "split_k_reduce")
        for name in names:
            rows.append((name, 7, at, at + 9, None))
            at += 10
        if copies:
            rows.append(("Memcpy DtoH (Device -> Pinned)", 7, at, at + 2, None))
        at += gap
    return rows


@pytest.mark.parametrize("layers", [1, 4, 24])
def test_periodic_kernels_are_steps(tmp_path, layers):
    result = measure(read([write(tmp_path, trace(device=kernels(20, layers)))]))
    labels, inferred = steps(result)
    assert len(labels) == 18  # the first has no idle time before it, the last no successor that shows its end
    assert inferred.source == "kernels"
    assert result.ranks[0].parts[5].stop - result.ranks[0].parts[5].start == pytest.approx(
        10 * (3 + 6 * layers) + 40, abs=10
    )


def test_layers_of_one_step_are_not_steps(tmp_path):
    layers_only = kernels(1, 30, copies=False)[4:-4]
    result = measure(read([write(tmp_path, trace(device=layers_only))]))
    assert [part.label for part in result.ranks[0].parts] == ["window"]
    assert "layers" in result.steps.evidence


def test_ranks_that_begin_a_step_apart_keep_their_own_bounds(tmp_path):
    files = []
    for rank, skipped in enumerate((0, 1)):
        recording = Recording(on_device=True)
        for number in range(8):
            if number >= skipped:
                recording.train()
            else:
                recording.rest(400)
        files.append(write(tmp_path, recording.document(rank=rank, world=2, host_name="one"), f"{rank}.json"))
    result = measure(read(files))
    for rank in result.ranks:
        assert sum(part.stop - part.start for part in rank.parts) == rank.parts[-1].stop - rank.parts[0].start
    assert result.steps.how == "inferred"


@settings(max_examples=40)
@given(
    on_device=st.booleans(),
    plan=st.lists(st.sampled_from(["train", "train", "train", "evaluate", "save", "rest"]), min_size=1, max_size=16),
    micro_batches=st.integers(1, 3),
    marked=st.booleans(),
)
def test_parts_tile_the_window_and_means_take_full_steps(tmp_path_factory, on_device, plan, micro_batches, marked):
    recording = Recording(on_device)
    for number, work in enumerate(plan):
        if work == "train":
            recording.train(str(number) if marked else None, micro_batches)
        elif work == "evaluate":
            recording.evaluate()
        elif work == "save":
            recording.save()
        else:
            recording.rest(2000)
        if marked and recording.marks:
            recording.extend_mark()
    if on_device and not recording.device:
        recording.op("aten::mm", "gemm")
    if not recording.host:
        recording.op("aten::mm")
    events = read([write(tmp_path_factory.mktemp("t"), recording.document())])
    whole, result = measure(events, "all").ledgers[0], measure(events)
    (rank,) = result.ranks
    bounds = [(part.start, part.stop) for part in rank.parts]
    assert all(start < stop for start, stop in bounds)
    assert all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    assert (bounds[0][0], bounds[-1][1]) == rank.events.window
    if not marked:
        assert sum(ledger.wall_ns for ledger in rank.ledgers) == whole.wall_ns
    full = [ledger for ledger, part in zip(rank.ledgers, rank.parts) if part.kind == "step" and not part.partial]
    assert all(part.partial == (part.kind != "step") for part in rank.parts)
    if full:
        assert result.mean.wall_ns == sum(ledger.wall_ns for ledger in full) // len(full)
        assert set(result.mean.scope.steps) == {ledger.scope.steps[0] for ledger in full}
    assert len({part.label for part in rank.parts}) == len(rank.parts)


HIDDEN = {
    "a100_ddp_resnet": 3,
    "mi300_resnet_ac": 3,
    "diff_control": 6,
    "diff_test": 6,
    "resnet50_loader0": 6,
    "resnet50_loader4": 6,
}
"""Public trace -> its marked steps."""


@pytest.mark.parametrize("name", HIDDEN)
def test_public_traces_without_their_marks_have_the_same_steps(public_trace, name):
    (events,) = read([public_trace(f"{name}.json.gz")])
    hidden = tuple("Python GC" if text.startswith(events.mark) else text for text in events.names)
    marked, inferred = measure([events]), measure([msgspec.structs.replace(events, marks=(), names=hidden)])
    assert inferred.steps.how == "inferred"
    assert len(inferred.ranks[0].parts) - inferred.steps.steps <= 2
    assert abs(inferred.steps.steps - marked.steps.steps) <= 1
    assert inferred.mean.wall_ns == pytest.approx(marked.mean.wall_ns, rel=0.05)


def test_one_layer_window_of_a_public_trace_is_not_divided(public_trace):
    (events,) = read([public_trace("h100_qwen_0.5b.json.gz")])
    hidden = tuple("Python GC" if text.startswith(events.mark) else text for text in events.names)
    result = measure([msgspec.structs.replace(events, marks=(), names=hidden)])
    assert result.steps.how == "window"
    assert "layers" in result.steps.evidence
