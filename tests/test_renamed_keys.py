"""Renamed keys of job files: a file with an old one is refused, a stored run with old ones is upgraded."""

import json

import pytest
from msgspec.structs import replace

from tests.properties.test_job import GOOD, toml
from tests.refused import missing_values, refused
from tests.stored import stored
from trainyard import machine, renamed_keys
from trainyard.api import fixed_axes
from trainyard.errors import BadFile, BadJob, UnknownName
from trainyard.job import Checkpoint, Recovery
from trainyard.job_file import parse
from trainyard.model import Model
from trainyard.models import presets
from trainyard.recipe import Recipe
from trainyard.record import OLD_SCHEMAS, SCHEMA, Incident
from trainyard.store import run_folder
from trainyard.store.store import Store

OLD_KEYS = [(section, old, new) for section, keys in renamed_keys.KEYS.items() for old, new in keys.items()]
OLD_VALUES = [(*key.split("."), old, new) for key, values in renamed_keys.VALUES.items() for old, new in values.items()]
FIELDS = {"recipe": Recipe.__struct_fields__, "model": Model.__struct_fields__} | {
    "checkpoint": Checkpoint.__struct_fields__,
    "recovery": Recovery.__struct_fields__,
}


@pytest.mark.parametrize(("section", "old", "new"), OLD_KEYS)
def test_an_old_key_is_refused_with_the_new_one(section, old, new):
    assert old not in FIELDS[section]
    assert new in FIELDS[section]
    with refused(BadJob, "job.toml", f"$.{section}:", repr(old), repr(new)) as caught:
        parse(toml({**GOOD, section: {old: 1, **GOOD[section]}}), "job.toml")
    assert missing_values(caught.value.next_step, new) == []


@pytest.mark.parametrize(("section", "key", "old", "new"), OLD_VALUES)
def test_an_old_value_is_refused_with_the_new_one(section, key, old, new):
    with refused(BadJob, f"$.{section}.{key}:", repr(old), repr(new)):
        parse(toml({**GOOD, section: {**GOOD[section], key: old}}), "job.toml")
    job = parse(toml({**GOOD, section: {**GOOD[section], key: new}}), "job.toml")
    assert getattr(getattr(job, section), key) == new


@pytest.mark.parametrize(("old", "new"), [(old, new) for section, old, new in OLD_KEYS if section == "model"])
def test_an_old_key_of_a_model_file_is_refused(old, new, tmp_path):
    (tmp_path / "mine.toml").write_text(f"[model]\n{old} = 1\n")
    with refused(BadJob, "mine.toml", "$.model:", repr(old), repr(new)):
        presets.take("mine.toml", "model", folder=tmp_path)


def test_fix_of_an_old_key_names_the_new_one():
    with refused(UnknownName, "'remat'") as caught:
        fixed_axes.parse_fix("remat=full")
    assert missing_values(caught.value.next_step, "activation_checkpoint") == []


@pytest.mark.parametrize(
    ("line", "misspelt", "path", "suggestion"),
    [
        ("per_node = 8", "per_nodes = 8", "per_nodes", "per_node"),
        ("memory = {", "memry = {", "$.device", "memory"),
        ("power = { value", "power = { vale", "$.device.power", "value"),
        ("float8 = { value", "float8 = { vale", "$.device.peak", "value"),
        ("[inter_node]", "[[fabric]]\nnode = 4\n[inter_node]", "$.fabric", "nodes"),
    ],
)
def test_misspelt_key_of_a_machine_file_has_a_suggestion(line, misspelt, path, suggestion, tmp_path):
    text = machine.known()["h100"].read_text()
    assert line in text
    file = tmp_path / "mine.toml"
    file.write_text(text.replace(line, misspelt, 1))
    with refused(BadFile, str(file), path) as caught:
        machine.load(str(file))
    assert missing_values(caught.value.next_step, suggestion) == []


@pytest.mark.parametrize("schema", OLD_SCHEMAS)
def test_a_stored_run_with_old_keys_is_upgraded_when_read(tmp_path, schema):
    store = Store(tmp_path, say=lambda text: None)
    run = stored(store)
    path = store.runs / run.id / "run.json"
    head = json.loads(path.read_text())
    for section, keys in renamed_keys.KEYS.items():
        old = {new: key for key, new in keys.items()}
        head["job"][section] = {old.get(key, key): value for key, value in head["job"].get(section, {}).items()}
    head["job"]["recipe"] |= {"remat": "op", "update": "loop"}
    head["incidents"] = [{"kind": "hang", "when": "2025", "attempt": 0, "says": "rank 1 hung", "resumed": 3}]
    data = json.dumps({**head, "schema": schema}).encode()
    recipe = replace(run.job.recipe, activation_checkpoint="selective", optimizer_implementation="for-loop")
    upgraded = run_folder.decode_head(data, "run.json")
    assert (upgraded.schema, upgraded.job) == (SCHEMA, replace(run.job, recipe=recipe))
    assert upgraded.incidents == (Incident(kind="hang", time="2025", attempt=0, summary="rank 1 hung", resumed_step=3),)


@pytest.mark.parametrize("schema", OLD_SCHEMAS)
@pytest.mark.parametrize("job", ["null", "5", "{}", '{"recipe": 5}', '{"recipe": {"remat": {}}}'])
def test_a_broken_run_of_an_old_schema_is_a_bad_file(job, schema):
    with refused(BadFile, "run.json"):
        run_folder.decode_head(f'{{"schema": "{schema}", "id": "x", "started": "", "job": {job}}}'.encode(), "run.json")


@pytest.mark.parametrize(("table", "old", "new"), [
    ("", "inside", "intra_node"), ("", "between", "inter_node"), ("", "overhead", "power_overhead"),
    ("", "tuned", "calibration"), ("", "spread", "prediction_interval"), ("device", "reached", "achieved"),
    ("intra_node", "reached", "achieved"), ("intra_node", "peer", "peer_bandwidth"),
])  # fmt: skip
def test_an_old_key_of_a_machine_file_is_refused(table, old, new, tmp_path):
    text = machine.known()["h100"].read_text()
    head = f"[{table}]\n" if table else 'name = "h100"\n'
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(head, f"{head}{old} = 1\n", 1))
    with refused(BadFile, "mine.toml", repr(old), repr(new)) as caught:
        machine.load(str(path))
    assert missing_values(caught.value.next_step, new) == []
    assert not table or f"$.{table}" in str(caught.value)
