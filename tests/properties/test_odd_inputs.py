"""`plan` of odd sizes: the refused ones are impossible by rules that are written here a second time, and all others
have the layout of plain data parallelism."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.api.plan_layouts import PlanOptions, plan_layouts
from trainyard.errors import BadInput, BadJob
from trainyard.model import Model
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.predict.inputs.layout_space import PlannerInput

PRIMES = [1, 2, 3, 7, 13, 31]
MODELS = st.fixed_dictionaries(
    {
        "layers": st.sampled_from([1, 3, 5, 12, 61]),
        "heads": st.sampled_from([1, 3, 7, 8, 12]),
        "vocab": st.sampled_from([257, 50_257, 32_003, 128_256]),
        "experts": st.sampled_from([0, 0, 3, 8]),
        "position": st.sampled_from(["rope", "learned"]),
        "tie_word_embeddings": st.booleans(),
    }
)
STEPS = st.fixed_dictionaries(
    {
        "devices": st.sampled_from([1, 2, 3, 5, 7, 8, 12, 67]),
        "batch": st.sampled_from([*PRIMES, 8, 12, 24, 67]),
        "seq_len": st.sampled_from([1, 2, 7, 127, 256, 509, 1021]),
    }
)
FIXED = st.sampled_from([{}, {}, {}, {"tp": 2}, {"tp": 7}, {"pp": 3}, {"cp": 2}])
ARITHMETIC = re.compile(r"([\d,]+)[a-z/ ]* % \(?(2 x cp )?(?:tp x cp |tp |pp |cp )?([\d,]+)\)? = (\d+)")


def model_of(drawn: dict[str, Any]) -> Model:
    experts = {"experts": drawn["experts"], "top_k": 2, "moe_ffn_hidden_size": 96} if drawn["experts"] else {}
    sizes = {key: value for key, value in drawn.items() if key != "experts"}
    heads = drawn["heads"]
    return Model(
        name="odd", hidden_size=32 * heads, ffn_hidden_size=96 * heads, kv_heads=heads, head_dim=32, **sizes, **experts
    )


def divides(model: Model, step: dict[str, int], fixed: dict[str, int]) -> bool:
    """Whether any dp x tp x cp x pp divides the devices, the heads, the layers, the sequence and the batch."""
    degrees = range(1, step["devices"] + 1)
    for tp, pp, cp in product(degrees, degrees, degrees):
        if step["devices"] % (tp * pp * cp) or model.heads % tp or pp > model.layers:
            continue
        if cp > 1 and step["seq_len"] % (2 * cp):
            continue
        if any({"tp": tp, "pp": pp, "cp": cp}[axis] != value for axis, value in fixed.items()):
            continue
        if step["batch"] % (step["devices"] // (tp * pp * cp)) == 0:
            return True
    return False


def write(model: Model, path: Path) -> Path:
    names = ["layers", "hidden_size", "ffn_hidden_size", "heads", "kv_heads", "head_dim", "vocab", "position"]
    names += ["experts", "top_k", "moe_ffn_hidden_size"] if model.experts else []
    lines = [f"{name} = {getattr(model, name)!r}" for name in names]
    tied = str(model.tie_word_embeddings).lower()
    path.write_text("[model]\n" + "\n".join([*lines, f"tie_word_embeddings = {tied}"]).replace("'", '"'))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(MODELS, STEPS, FIXED, st.sampled_from(sorted(FRAMEWORKS)))
def test_odd_sizes_are_planned_or_refused_for_a_true_reason(
    folder: Path, drawn: dict[str, Any], step: dict[str, int], fixed: dict[str, int], framework: str
) -> None:
    model = model_of(drawn)
    path = write(model, folder / "odd.toml")
    fix = tuple(f"{axis}={value}" for axis, value in fixed.items())
    has_plain = step["batch"] % step["devices"] == 0 and not fixed
    options = PlanOptions(
        machine="h100", devices=step["devices"], batch=step["batch"], seq_len=step["seq_len"], fix=fix
    )
    refusal = None
    try:
        plan_layouts(str(path), framework, options)
    except BadJob as error:
        refusal = error
    if refusal:
        check_reason(f"{refusal.message} {refusal.next_step}", model, step, fixed)
        assert not has_plain, refusal
        return
    assert divides(model, step, fixed)
    if has_plain:
        wanted = PlannerInput(model, step["devices"], 8, step["batch"], step["seq_len"])
        axes = FRAMEWORKS[framework].layouts(wanted).columns
        assert (axes["dp_replicate"] * axes["dp_shard"] == step["devices"]).any()


@pytest.mark.parametrize("tokens", [1e19, 1e22, 1e300, float("inf"), float("nan"), -1.0])
def test_absurd_budget_is_refused(tokens: float) -> None:
    with pytest.raises(BadInput) as caught:
        plan_layouts("tiny", "", PlanOptions(machine="h100", devices=8, batch=8, seq_len=128, tokens=tokens))
    assert caught.value.code == "bad-input"
    assert "--tokens" in caught.value.message


def test_largest_budget_is_planned() -> None:
    options = PlanOptions(machine="h100", devices=1, batch=8, seq_len=128, tokens=1e18, fix=("pp=1", "tp=1"))
    assert plan_layouts("tiny", "", options).tokens == 1e18


def check_reason(reason: str, model: Model, step: dict[str, int], fixed: dict[str, int]) -> None:
    """The reason is one of a few kinds, and holds; a remainder is that of the numbers before it, and not 0."""
    for number, twice, divisor, remainder in ARITHMETIC.findall(reason):
        divided_by = int(divisor.replace(",", "")) * (2 if twice else 1)
        assert int(number.replace(",", "")) % divided_by == int(remainder) != 0
    assert not re.search(r"vocab", reason)
    if reason.startswith("no layout of"):
        assert not divides(model, step, fixed), reason
    elif reason.startswith("seq_len"):
        assert step["seq_len"] % (fixed.get("tp", 1) * fixed.get("cp", 1)), reason
    else:
        refused = r"\w[\w ()]* supports none of the layouts|(all [\d,]+|the only) layouts? that fits? (are|is) refused"
        assert re.match(refused, reason), reason
