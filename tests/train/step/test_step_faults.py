"""Faulty steps: the same decision on every rank, the state that a skipped step leaves alone, the tensor named."""

import math
import shutil
from functools import partial

import msgspec
import pytest

from tests.ranks import on_ranks
from tests.simulated_streams import SimulatedStreams
from tests.train.language_model import small_job, trainer_of
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.rules import device_rules

MODEL = Model(layers=2, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8)
EXPERTS = msgspec.structs.replace(
    MODEL, experts=4, top_k=2, moe_ffn_hidden_size=16, load_balancing="bias", router="sigmoid"
)
DEEP = msgspec.structs.replace(MODEL, layers=4)
PART = "layers.1.attention.out"
FAULTY, STEPS = 2, 5


def plant(trainer, kind, part=PART):
    """Makes an activation, or its gradient, NaN while the returned dict has `on`."""
    switch = {"on": False}

    def spoil(_module, _inputs, output):
        if switch["on"] and kind == "gradient":
            output.register_hook(lambda gradient: gradient * math.nan)
        return output * math.nan if switch["on"] and kind == "activation" else None

    for module in trainer.parallel_model.modules:
        for name, child in module.named_modules():
            if name == part:
                child.register_forward_hook(spoil)
    return switch


def state_of(trainer):
    """Copies of this rank's weights, buffers and optimizer state, and the optimizer's settings."""
    from trainyard.train.checkpoint import training_state

    tensors = training_state.weights(trainer) | training_state.optimizer_state(trainer)
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    return {name: local(tensor).clone() for name, tensor in tensors.items()}, rates


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def same_state(a, b):
    import torch

    return a[1] == b[1] and a[0].keys() == b[0].keys() and all(torch.equal(a[0][name], b[0][name]) for name in a[0])


def build(job):
    import torch

    from trainyard import plugins

    torch.set_num_threads(1)
    return plugins.load("workloads", job.workload).build(job, "cpu")


def train_with_fault(ranks, job, kind):
    """Outcomes with a fault planted on the last rank, its description, and whether it left the state alone."""
    trainer = build(job)
    switch, outcomes, faults, kept = plant(trainer, kind), [], [], []
    for step in range(STEPS):
        switch["on"] = step == FAULTY and ranks.rank == ranks.world - 1
        before = state_of(trainer)
        outcomes.append(trainer(step))
        if trainer.fault is not None:
            faults.append((step, trainer.fault, trainer.find_non_finite(step)))
            kept.append(same_state(before, state_of(trainer)))
    return outcomes, faults, kept


def train_by_hand(job):
    """Outcomes of a training that leaves out the step."""
    trainer = build(job)
    return [trainer(step) for step in range(STEPS) if step != FAULTY]


def compare_with_training_by_hand(ranks, job):
    by_hand = train_by_hand(job)
    return {kind: (*train_with_fault(ranks, job, kind), by_hand) for kind in ("activation", "gradient")}


slow = pytest.mark.slow
LAYOUTS = {
    "DDP": (Layout(dp_replicate=2), {}),
    "FSDP": (Layout(dp_shard=2), {}),
    "TP": (Layout(tp=2), {}),
    "PP": (Layout(pp=2), {"schedule": "1f1b"}),
    "ZeRO-1": (Layout(dp_shard=2, zero=1), {}),
    "EP": (Layout(dp_shard=2, ep=2), {"activation_checkpoint": "full"}),
    "zero bubble": (Layout(pp=2, interleave=2), {"schedule": "zero_bubble"}),
}


@pytest.mark.torch
@pytest.mark.parametrize(
    "layout", [*list(LAYOUTS)[:4], *(pytest.param(name, marks=slow) for name in list(LAYOUTS)[4:])]
)
def test_all_ranks_skip_the_step_of_one_ranks_fault(text, layout):
    spread, recipe = LAYOUTS[layout]
    model = EXPERTS if spread.ep > 1 else DEEP if spread.interleave > 1 else MODEL
    job = small_job(model, text, spread, on_non_finite="skip", **recipe)
    results = on_ranks(2, compare_with_training_by_hand, job)
    for kind in ("activation", "gradient"):
        for outcomes, faults, kept, by_hand in (result[kind] for result in results):
            [(step, fault, tensor)] = faults
            assert (step, fault.kind, fault.action, kept) == (FAULTY, "non_finite", "skip", [True])
            expected = f"the output of {PART}"
            assert tensor.label == (expected if kind == "activation" else f"the gradient of {expected}")
            assert (tensor.rank, 0 < tensor.count <= tensor.size) == (1, True)
            assert [outcome for number, outcome in enumerate(outcomes) if number != FAULTY] == by_hand
            assert math.isnan(outcomes[FAULTY].loss) == (kind == "activation")
            assert outcomes[FAULTY].grad_norm == math.inf
        assert results[0][kind][1] == results[1][kind][1], "the same fault on both ranks"


# One rank


def skipping(text, **recipe):
    return trainer_of(small_job(MODEL, text, **{"on_non_finite": "skip", **recipe}))


def record_waits(monkeypatch):
    """The names of the methods with which the host reads tensors from now on."""
    import torch

    waits = []
    for name in ("item", "tolist", "__bool__", "__float__", "cpu"):
        method = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor,
            name,
            lambda self, *args, name=name, method=method: (waits.append(name), method(self, *args))[1],
        )
    return waits


@pytest.mark.torch
def test_a_step_waits_for_the_device_once(text, monkeypatch):
    trainer = skipping(text, on_loss_spike="skip")
    trainer(0)
    waits = record_waits(monkeypatch)
    trainer(1)
    assert waits == ["tolist"]


@pytest.mark.torch
def test_an_unchecked_step_of_a_device_does_not_wait(text, monkeypatch):
    """The device is simulated: its copies wait until they are read."""
    from trainyard.train.step import trainer as trainer_module
    from trainyard.train.step.deferred_outcome import DeferredOutcome

    trainer, expected = skipping(text, on_non_finite="ignore"), skipping(text, on_non_finite="ignore")
    assert not trainer.guard.checks
    trainer.defers_outcome = True
    device = SimulatedStreams(newest_first=False)
    monkeypatch.setattr(trainer_module, "DeferredOutcome", partial(DeferredOutcome, cuda=device))
    with monkeypatch.context() as patch:
        waits = record_waits(patch)
        outcomes = [trainer(step) for step in range(3)]
        assert not waits
    assert [(step.loss, step.grad_norm) for step in outcomes] == [tuple(expected(step)) for step in range(3)]


@pytest.mark.torch
@pytest.mark.parametrize("action", ["stop", "rollback"])
def test_no_action_changes_the_state(text, action):
    trainer = skipping(text, on_non_finite=action)
    trainer(0)
    before = state_of(trainer)
    plant(trainer, "activation")["on"] = True
    assert math.isnan(trainer(1).loss)
    assert trainer.fault.action == action
    trainer.find_non_finite(1)
    assert same_state(before, state_of(trainer))


@pytest.mark.torch
@pytest.mark.parametrize("state", ["weight", "optimizer state exp_avg of"])
def test_non_finite_state_is_named_before_what_it_spoils(text, state):
    trainer = skipping(text)
    trainer(0)
    weight = dict(trainer.modules()[0].named_parameters())["layers.0.mlp.up.weight"]
    weight.data[0, 0] = math.nan
    if state.startswith("optimizer"):
        trainer.optimizer.state[weight]["exp_avg"][0, :3] = math.inf
    trainer(1)
    tensor = trainer.find_non_finite(1)
    assert tensor.label == f"{state} layers.0.mlp.up.weight"
    assert tensor.count == (3 if state.startswith("optimizer") else 1)


@pytest.mark.torch
def test_masks_do_not_count(text):
    import torch

    trainer = skipping(text)
    model = trainer.modules()[0]
    mask = torch.full((4, 4), -math.inf).triu(1)
    model.layers["0"].register_buffer("mask", mask, persistent=False)
    masked = torch.nn.Identity()
    model.layers["0"].add_module("masked", masked)
    model.layers["0"].mlp.register_forward_pre_hook(lambda *_: masked(mask) is None or None)
    switch = plant(trainer, "activation")
    switch["on"] = True
    trainer(0)
    assert trainer.find_non_finite(0).label == f"the output of {PART}"
    switch["on"] = False
    assert trainer.find_non_finite(0).label == "the output of layers.0.masked", "if nothing else is infinite"


@pytest.mark.torch
def test_gradient_of_a_weight_is_named(text):
    trainer, switch = skipping(text), {"on": True}
    weight = dict(trainer.modules()[0].named_parameters())["layers.0.mlp.up.weight"]
    weight.register_hook(lambda gradient: gradient * math.inf if switch["on"] else None)
    trainer(0)
    assert trainer.find_non_finite(0).label == "the gradient of layers.0.mlp.up.weight"
    trainer(0)
    switch["on"] = False  # as if the fault does not repeat
    assert trainer.find_non_finite(0).label == "the gradient of layers.0.mlp.up.weight"
    assert trainer.find_non_finite(0) is None


@pytest.mark.torch
@pytest.mark.slow
def test_module_inside_a_compiled_block_is_named(text):
    if not any(map(shutil.which, device_rules.compilers("cpu"))):
        pytest.skip("no C++ compiler on this machine")
    trainer = skipping(text, compile=True)
    weight = dict(trainer.modules()[0].named_parameters())["layers.1.mlp_norm.weight"]
    weight.data.fill_(3e38)
    trainer(0)
    assert trainer.find_non_finite(0).label == "the output of layers.1.mlp_norm"


@pytest.mark.torch
def test_float16_fault_is_not_an_overflow(text):
    trainer = skipping(text, dtype="float16")
    switch = plant(trainer, "activation")
    switch["on"] = True
    trainer(0)
    assert trainer.fault.kind == "non_finite", "a smaller scale does not change the forward pass"
    assert trainer.scaling.scale == 2.0**16
    trainer = skipping(text, dtype="float16")
    plant(trainer, "gradient")["on"] = True
    faults = []
    for step in range(20):
        trainer(step)
        faults.append(trainer.fault is not None)
    assert faults == [False] * 16 + [True] * 4, "the scale falls from 2^16 to 1 first"
    assert trainer.scaling.scale == 1.0


@pytest.mark.torch
def test_batch_statistics_of_a_skipped_step_are_forgotten():
    job = Job(
        workload="vision",
        sizes={"family": "resnet", "stages": [1], "width": 4, "classes": 10, "image": 16},
        recipe=Recipe(tokens_per_step=8, micro_batch_size=4, dataset="synthetic", on_non_finite="skip"),
    )
    trainer, by_hand = build(job), build(job)
    switch = plant(trainer, "activation", "head")
    outcomes = []
    for step in range(3):
        switch["on"] = step == 1
        outcomes.append(trainer(step))
    assert [outcomes[0], outcomes[2]] == [by_hand(0), by_hand(2)]
    assert same_state(state_of(trainer), state_of(by_hand))


def on_cpu(load):
    import torch

    from trainyard.train.data.device_batches import DeviceBatches

    return DeviceBatches(load, torch.device("cpu"), prefetches=False)


@pytest.mark.torch
def test_non_finite_input_is_named():
    job = Job(
        workload="vision",
        sizes={"family": "vit", "layers": 1, "width": 16, "ffn": 16, "heads": 2, "classes": 10, "image": 8, "patch": 4},
        recipe=Recipe(tokens_per_step=4, micro_batch_size=4, dataset="synthetic", on_non_finite="skip"),
    )
    trainer = build(job)
    read = trainer.batches

    def spoilt(step):
        batch = read(step)
        batch.inputs[0][0, 0, 0, :2] = math.nan
        return batch

    trainer.batches = on_cpu(spoilt)
    trainer(0)
    tensor = trainer.find_non_finite(0)
    assert (tensor.label, tensor.count) == ("input 0 of the batch", 2)


@pytest.mark.torch
def test_no_batch_is_prefetched_after_the_last_step_or_a_faulty_one(text):
    trainer = skipping(text)
    steps, prefetched, faulty = trainer.job.measure.in_all, [], 2
    switch, read = plant(trainer, "activation"), trainer.batches
    trainer.batches = on_cpu(read)
    trainer.batches.prefetch = prefetched.append
    for step in range(steps):
        switch["on"] = step == faulty
        trainer(step)
    assert prefetched == [step for step in range(1, steps) if step != faulty + 1]


@pytest.mark.torch
def test_spike_of_a_bad_batch_is_skipped(text):
    import torch

    from trainyard.train.task import Batch

    recipe = {"on_loss_spike": "skip", "loss_spike_window": 8, "learning_rate": 1e-2}
    trainer, by_hand = skipping(text, **recipe), skipping(text, **recipe)
    read, bad = trainer.batches, 20

    def spoilt(step):
        batch = read(step)
        return (
            Batch(*(tuple(torch.full_like(part, 255) for part in parts) for parts in batch)) if step == bad else batch
        )

    trainer.batches = on_cpu(spoilt)
    outcomes, faulty = [], []
    for step in range(24):
        outcomes.append(trainer(step))
        faulty += [step] if trainer.fault else []
    assert faulty == [bad]
    assert outcomes[bad].loss > max(outcome.loss for outcome in outcomes[:bad])
    del outcomes[bad]
    assert outcomes == [by_hand(step) for step in range(24) if step != bad]
