"""Job files: errors name a misspelt key, its path and the nearest valid key, and show their arithmetic."""

import re
from typing import get_type_hints

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.refused import missing_values, refused
from trainyard import words
from trainyard.errors import BadJob, nearest
from trainyard.job import Checkpoint, Job, Measure, Recovery
from trainyard.job_file import choices, parse
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe

SECTIONS = {"": Job, "model": Model, "layout": Layout, "recipe": Recipe, "measure": Measure} | {
    "checkpoint": Checkpoint,
    "recovery": Recovery,
}
GOOD = {
    "model": {"layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "heads": 4, "kv_heads": 2, "head_dim": 16},
    "recipe": {"seq_len": 32, "tokens_per_step": 256},
    "layout": {},
    "measure": {},
    "checkpoint": {},
    "recovery": {},
}


def toml(sections: dict[str, dict[str, object]], top: dict[str, object] | None = None) -> str:
    lines = [f"{key} = {value!r}" for key, value in (top or {}).items()]
    for name, fields in sections.items():
        lines += [f"[{name}]", *(f"{key} = {value!r}" for key, value in fields.items())]
    return "\n".join(lines)


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[str, str]:
    """(section, key): a field of the section with one letter dropped or doubled, or two letters swapped."""
    section = draw(st.sampled_from(sorted(SECTIONS)))
    key = draw(st.sampled_from(SECTIONS[section].__struct_fields__))
    at = draw(st.integers(0, len(key) - 1))
    how = draw(st.sampled_from(["drop", "double", "swap"]))
    wrong = {
        "drop": key[:at] + key[at + 1 :],
        "double": key[:at] + key[at] + key[at:],
        "swap": key[:at] + key[at : at + 2][::-1] + key[at + 2 :],
    }[how]
    assume(wrong and wrong not in SECTIONS[section].__struct_fields__)
    return section, wrong


@given(misspelt())
def test_misspelt_key_error_names_path_and_nearest_key(section_and_key):
    section, key = section_and_key
    if section:
        text = toml({**GOOD, section: {**GOOD[section], key: 1}})
    else:
        text = toml(GOOD, {key: "x"})
    path = f"$.{section}" if section else "$"
    with refused(BadJob, "job.toml", f"{path}:", repr(key)) as caught:
        parse(text, "job.toml")
    assert caught.value.next_step == nearest(key, SECTIONS[section].__struct_fields__)


@given(st.text())
def test_any_text_raises_only_bad_job(text):
    with refused(BadJob, "job.toml"):
        parse(text, "job.toml")


@given(
    seq_len=st.integers(1, 64),
    micro_batch_size=st.integers(1, 4),
    replicate=st.integers(1, 4),
    shard=st.integers(1, 4),
    tokens=st.integers(1, 10_000),
)
def test_indivisible_batch_error_shows_arithmetic(seq_len, micro_batch_size, replicate, shard, tokens):
    sections = {
        **GOOD,
        "recipe": {"seq_len": seq_len, "micro_batch_size": micro_batch_size, "tokens_per_step": tokens},
        "layout": {"dp_replicate": replicate, "dp_shard": shard},
    }
    once = seq_len * micro_batch_size * replicate * shard
    if tokens % once:
        with refused(BadJob, "tokens_per_step", f"{tokens:,}", f"{once:,}") as caught:
            parse(toml(sections), "job.toml")
        [advised] = re.findall(r"\d+", caught.value.next_step)
        assert int(advised) % once == 0
    else:
        job = parse(toml(sections), "job.toml")
        assert job.accumulate * once == tokens
        assert job.layout.ranks == replicate * shard


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 20))
def test_ranks_of_unequal_nodes_are_numbered_in_order(counts, ranks):
    recovery = Recovery(nodes=len(counts), ranks_per_node=tuple(counts))
    layout, recipe = Layout(dp_replicate=ranks), Recipe(seq_len=8, tokens_per_step=8 * ranks)
    if sum(counts) != ranks:
        with refused(BadJob, f"{counts}", "$.recovery", f"{sum(counts)} ranks", ranks):
            Job(model=Model(**GOOD["model"]), layout=layout, recipe=recipe, recovery=recovery)
        return
    job = Job(model=Model(**GOOD["model"]), layout=layout, recipe=recipe, recovery=recovery)
    nodes = [job.node_of(rank) for rank in range(ranks)]
    assert nodes == [node for node, count in enumerate(counts) for _ in range(count)]
    assert [job.ranks_on(node) for node in range(len(counts) + 1)] == [
        sum(counts[:node]) for node in range(len(counts) + 1)
    ]
    for node, count in enumerate(counts):
        job.check_node_fits(node, count, "it")
        with refused(BadJob, f"node {node}", count, ranks, count - 1):
            job.check_node_fits(node, count - 1, "it")


@pytest.mark.parametrize(("nodes", "counts"), [(2, (1,)), (1, (1, 1)), (2, (0, 2)), (2, (-1, 3))])
def test_ranks_per_node_are_positive_and_one_per_node(nodes, counts):
    with refused(BadJob, f"{list(counts)}"):
        Recovery(nodes=nodes, ranks_per_node=counts)


@given(st.lists(st.integers(1, 4), min_size=5, max_size=5), st.integers(1, 64))
def test_too_large_layout_error_names_the_widest_axis(sizes, devices):
    axes = ("dp_replicate", "dp_shard", "tp", "cp", "pp")
    layout = Layout(**dict(zip(axes, sizes)))
    job = Job(
        model=Model(**GOOD["model"]), recipe=Recipe(seq_len=8, tokens_per_step=8 * sizes[0] * sizes[1]), layout=layout
    )
    if layout.ranks <= devices:
        job.check_fits(devices, "this machine")
    else:
        with refused(BadJob, "$.layout:", layout.ranks, "this machine", devices) as caught:
            job.check_fits(devices, "this machine")
        widest = max(zip(axes, sizes), key=lambda axis: axis[1])
        assert missing_values(caught.value.next_step, *widest[:1]) == []


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        *[
            ("model", key, 0)
            for key in ("layers", "hidden_size", "ffn_hidden_size", "heads", "kv_heads", "head_dim", "vocab")
        ],
        ("model", "kv_heads", 3),
        ("model", "head_dim", 15),
        ("model", "top_k", 2),
        *[("layout", key, 0) for key in (*words.AXES, "interleave", "zero")],
        *[("recipe", key, 0) for key in ("seq_len", "tokens_per_step", "micro_batch_size")],
        ("recipe", "learning_rate", 0.0),
        ("recipe", "seed", -1),
        ("recipe", "dtype", "float17"),
        ("recipe", "activation_checkpoint", "some"),
        *[("measure", key, -1) for key in Measure.__struct_fields__ if key not in ("stacks", "shapes", "memory")],
    ],
)
def test_impossible_values_name_the_section_and_the_value(section, key, value):
    text = toml({**GOOD, section: {**GOOD[section], key: value}})
    with refused(BadJob, f"$.{section}", value):
        parse(text, "job.toml")


def test_a_job_survives_json():
    job = parse(toml(GOOD), "job.toml")
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job


CHOSEN = [
    (section, field)
    for section, kind in SECTIONS.items()
    for field, hint in get_type_hints(kind).items()
    if choices(hint) not in ([], [True, False])
]


@pytest.mark.parametrize(("section", "field"), CHOSEN)
def test_invalid_choice_error_lists_all_choices(section, field):
    known = choices(get_type_hints(SECTIONS[section])[field])
    for wrong in ("no such", 77):
        with pytest.raises(BadJob) as caught:
            parse(toml({**GOOD, section: {**GOOD[section], field: wrong}}), "job.toml")
        message = str(caught.value)
        assert message.startswith(f"job.toml at $.{section}.{field}: ")
        assert all((repr(value) if isinstance(value, str) else str(value).lower()) in message for value in known)


@pytest.mark.parametrize(("section", "field"), CHOSEN)
def test_misspelt_choice_error_suggests_the_nearest(section, field):
    for value in choices(get_type_hints(SECTIONS[section])[field]):
        if isinstance(value, str) and len(value) > 3:
            with refused(BadJob, f"$.{section}") as caught:
                parse(toml({**GOOD, section: {**GOOD[section], field: value + "x"}}), "job.toml")
            assert re.findall(r"'([^']*)'", caught.value.next_step) == [value]


def test_dtype_error_ends_with_a_suggestion():
    with refused(BadJob, "job.toml", "$.recipe:", "'bf16'", "'bfloat16'?") as caught:
        parse(toml({**GOOD, "recipe": {**GOOD["recipe"], "dtype": "bf16"}}), "job.toml")
    assert str(caught.value).endswith("'bfloat16'?")


def test_numbers_in_next_steps_can_be_pasted():
    with refused(BadJob, "tokens_per_step", "1,999") as caught:
        parse(toml({**GOOD, "recipe": {"seq_len": 1000, "tokens_per_step": 1999}}), "job.toml")
    assert missing_values(caught.value.next_step, 2000) == []
