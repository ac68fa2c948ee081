"""Next steps of a search that found no layout: each of them, when followed, leads to a plan."""

import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.refused import missing_values
from trainyard.api.plan_layouts import PlanOptions, plan_layouts
from trainyard.errors import BadInput
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.report.plans.plans_file import Plans

REQUEST = {
    "model": "llama3-8b",
    "framework": "trainyard",
    "machine": "h100",
    "devices": 8,
    "batch": 64,
    "seq_len": 8192,
}

NUMBERS = {
    "batch": r"Use --batch (\d+)",
    "devices": r"([\d,]+) devices would be enough",
    "seq_len": r"(?:Sequences of|Pad the sequences to) ([\d,]+) tokens",
}
"""Field of a request -> the number that a remedy suggests for it."""
PADDED = r"([\d,]+) devices would be enough, with sequences of ([\d,]+) tokens"


def plan(request: dict[str, Any], fix: dict[str, Any]) -> Plans:
    fixed = tuple(f"{axis}={value}" for axis, value in fix.items())
    sizes = {name: request[name] for name in ("machine", "devices", "batch", "seq_len")}
    return plan_layouts(request["model"], request["framework"], PlanOptions(fix=fixed, **sizes))


def refusal(request: dict[str, Any], fix: dict[str, Any]) -> BadInput | None:
    try:
        plan(request, fix)
    except BadInput as error:
        return error
    return None


def follow(step: str, request: dict[str, Any], fix: dict[str, Any]) -> int:
    """Follows each remedy of a next step, and returns their number. Each leads to a plan, with as many layouts as the
    remedy says."""
    followed = 0
    for axes, count in re.findall(r"((?:--fix \w+(?: and )?)+) \(([\d,]+) layouts?\)", step):
        left_out = re.findall(r"--fix (\w+)", axes)
        plans = plan(request, {axis: value for axis, value in fix.items() if axis not in left_out})
        assert plans.fit_in_memory == int(count.replace(",", ""))
        followed += 1
    for framework in re.findall(r"--for (\w+)", step):
        plan({**request, "framework": framework}, fix)
        followed += 1
    for dtypes in re.findall(r"--fix dtype= with one of ([\w, ]+)", step):
        for dtype in dtypes.split(", "):
            error = refusal(request, {**fix, "dtype": dtype})  # the other axes may still exclude all layouts
            assert error is None or "dtype" not in error.next_step
            followed += 1
    step, with_padding = re.sub(PADDED, "", step), re.findall(PADDED, step)
    changes = [
        *({"devices": devices, "seq_len": seq_len} for devices, seq_len in with_padding),
        *({name: number} for name, pattern in NUMBERS.items() for number in re.findall(pattern, step)),
    ]
    for change in changes:
        plan(request | {name: int(number.replace(",", "")) for name, number in change.items()}, fix)
        followed += 1
    return followed


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "a schedule without a pipeline": (
        {}, {"schedule": "1f1b", "pp": 1}, ("Leave out --fix schedule (255 layouts) or --fix pp (94 layouts)",),
    ),
    "two axes that do not divide": (
        {}, {"tp": 3, "pp": 5}, ("32 heads % tp 3 = 2", "8 devices % pp 5 = 3", "--fix tp and --fix pp"),
    ),
    "axes that exclude each other": (
        {"framework": "deepspeed"}, {"tp": 2, "pp": 2}, ("--fix pp (13", "--fix tp (4", "--for trainyard"),
    ),
    "a third axis that excludes one of them": (
        {"framework": "deepspeed"}, {"tp": 2, "pp": 2, "zero": 3}, ("Leave out --fix pp (5 layouts).",),
    ),
    "a dtype that excludes an axis": (
        {"model": "mixtral-8x7b", "framework": "megatron", "devices": 64}, {"ep": 8, "dtype": "float16"},
        ("in float16", "--fix ep"),
    ),
    "an axis without sharding": ({}, {"zero": 3, "tp": 8}, ("ZeRO-3", "--fix tp (284", "--fix zero (13")),
    "an axis without offloading": ({}, {"offload": 1, "tp": 2}, ("1,580", "--fix offload", "--fix tp")),
    "a model that the framework does not train": (
        {"model": "nemotron-h-8b", "devices": 64}, {}, ("hybrid_pattern", "--for megatron"),
    ),
    "axes that need too much memory": (
        {"model": "llama3-70b", "devices": 64}, {"tp": 1, "dp_replicate": 64},
        ("TB too much", "--fix dp_replicate (177"),
    ),
    "a dtype that the machine has and the framework has not": (
        {"machine": "trn1", "framework": "deepspeed"}, {"dtype": "float16"}, ("float16", "with one of bfloat16"),
    ),
    "too few devices": ({"model": "llama3-405b"}, {"tp": 8}, ("GB too much", "128 devices")),
    "too few devices, and less than a doubling more are enough": (
        {"model": "deepseek-v3", "batch": 240, "seq_len": 4096}, {}, ("192 devices would be enough",),
    ),
    "a length that cp does not divide": (
        {"devices": 64, "batch": 256, "seq_len": 289_914}, {},
        ("Pad the sequences to 289,920 tokens, a multiple of 128",),
    ),
    "a length that cp does not divide, with offloading": (
        {"model": "llama3-70b", "framework": "megatron", "devices": 64, "seq_len": 500_001}, {},
        ("Pad the sequences to 500,096 tokens",),
    ),
    "a length that cp does not divide, and that is too long": (
        {"devices": 64, "batch": 256, "seq_len": 8_388_607}, {},
        ("256 devices would be enough, with sequences of 8,388,608 tokens, a multiple of 512",),
    ),
    "too few samples": ({"devices": 74, "batch": 3}, {}, ("3 samples", "--batch 74, a multiple of the 74 devices")),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "fix", "values"), CASES.values(), ids=CASES)
def test_each_remedy_works(changes: dict[str, Any], fix: dict[str, Any], values: tuple[str, ...]) -> None:
    request = REQUEST | changes
    error = refusal(request, fix)
    assert error is not None
    assert missing_values(str(error), *values) == []
    assert follow(error.next_step, request, fix) > 0


def test_the_suggested_length_of_sequences_is_close_to_the_longest() -> None:
    request = REQUEST | {"seq_len": (1 << 32) - 1}
    error = refusal(request, {})
    assert error is not None
    fits, too_long = (
        int(number.replace(",", "")) for number in re.findall(r"of ([\d,]+)(?: tokens| do)", error.next_step)
    )
    assert fits < too_long <= fits * 17 / 16
    assert follow(error.next_step, request, {}) == 1
    assert refusal(request | {"seq_len": too_long}, {})


AXES = {
    "tp": st.sampled_from([1, 2, 3, 8, 16]),
    "pp": st.sampled_from([1, 2, 3, 8, 64]),
    "cp": st.sampled_from([1, 2, 8]),
    "ep": st.sampled_from([1, 2, 8, 16]),
    "dp_shard": st.sampled_from([1, 4, 64]),
    "dp_replicate": st.sampled_from([1, 2, 64]),
    "zero": st.sampled_from([1, 2, 3]),
    "micro_batch_size": st.sampled_from([1, 7, 64]),
    "interleave": st.sampled_from([1, 2, 9]),
    "schedule": st.sampled_from(["1f1b", "interleaved", "zbv"]),
    "activation_checkpoint": st.sampled_from(["none", "selective", "full"]),
    "offload": st.sampled_from([0, 1]),
    "dtype": st.sampled_from(["float16", "float8"]),
}
FIXED = st.lists(st.sampled_from(sorted(AXES)), min_size=1, max_size=3, unique=True).flatmap(
    lambda axes: st.fixed_dictionaries({axis: AXES[axis] for axis in axes})
)
"""Few fixed axes: the fewest to leave out are found by trying all their subsets."""


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.sampled_from(["llama3-8b", "mixtral-8x7b", "llama3-70b", "nemotron-h-8b", "vit-b-16"]),
    st.sampled_from(sorted(FRAMEWORKS)),
    st.sampled_from(["h100", "trn1"]),
    st.sampled_from([8, 12, 64]),
    st.sampled_from([64, 63]),
    FIXED,
)
def test_remedies_of_any_fixed_axes_work(
    model: str, framework: str, machine: str, devices: int, batch: int, fix: dict[str, Any]
) -> None:
    seq_len = None if model == "vit-b-16" else 4096
    request = {
        "model": model, "framework": framework, "machine": machine, "devices": devices, "batch": batch,
        "seq_len": seq_len,
    }  # fmt: skip
    error = refusal(request, fix)
    assume(error is not None)
    assert error is not None
    follow(error.next_step, request, fix)
