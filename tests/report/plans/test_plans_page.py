"""The page of plans draws the document's values, and hostile names stay text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tests.page_views import HOSTILE
from tests.refused import code_of, missing_values, refused
from tests.report.render.test_html import BROWSER, Elements, drawn
from trainyard.cli.main import answer
from trainyard.cli.plan import command
from trainyard.errors import BadFile
from trainyard.ledger import encode_hook
from trainyard.predict.memory.framework_memory import USABLE
from trainyard.report.plans.plans_file import Plans, read
from trainyard.report.plans.plans_view import view_of_plans
from trainyard.report.render import html

ASKED = ["llama3-70b", "--machine", "mi300x", "--devices", "64", "--batch", "96", "--seq-len", "16384", "--for",
         "megatron", "--fix", "offload=0", "--tokens", "3e11", "--fix", "tp=8", "--json"]  # fmt: skip


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The document that the command prints for a job without a layout on an eighth of the devices."""
    result = CliRunner().invoke(command, ASKED)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def loaded(plain: dict[str, Any], folder: Path) -> Plans:
    path = folder / "plans.json"
    path.write_text(json.dumps(plain))
    plans = read(path)
    assert plans is not None
    return plans


def hostile(plain: dict[str, Any]) -> dict[str, Any]:
    """The document with hostile text in every name and reason."""
    document = json.loads(json.dumps(plain))
    document["machine"], document["device"], document["refused"] = (
        HOSTILE[0],
        HOSTILE[1],
        [name for name in HOSTILE if "\ud800" not in name],
    )
    document["constants"] |= {"name": HOSTILE[2], "source": HOSTILE[3], "description": HOSTILE[5]}
    document["scaling"]["summary"] = HOSTILE[6]
    for choice in document["choices"]:
        choice["plan"]["job"]["name"], choice["plan"]["job"]["model"]["name"] = HOSTILE[0], HOSTILE[1]
        for claim in choice["plan"]["assumptions"]:
            claim |= {"source": HOSTILE[6], "unit": HOSTILE[2]}
    for claim in document["claims"].values():
        claim |= {"source": HOSTILE[0], "unit": HOSTILE[5]}
    for reached in (*document["scaling"]["strong"], *document["scaling"]["weak"]):
        reached["reason"] = reached["reason"] and HOSTILE[1]
    return document


def test_document_round_trip(plain: dict[str, Any], tmp_path: Path) -> None:
    plans = loaded(plain, tmp_path)
    again = tmp_path / "again.json"
    again.write_bytes(msgspec.json.encode(plans, enc_hook=encode_hook))
    assert read(again) == plans
    assert plans.scaling is not None
    assert [point.point is None for point in plans.scaling.strong][:2] == [True, False]
    assert "fits on 8 devices in none" in plans.scaling.strong[0].reason


def test_view_matches_the_plans(plain: dict[str, Any], tmp_path: Path) -> None:
    plans = loaded(plain, tmp_path)
    view = view_of_plans(plans)
    best = plans.best
    *steps, total = view.bars
    assert sum(bar.ns for bar in steps) == total.ns == view.wall_ns == best.plan.ledger.wall_ns
    assert total.whiskers == (best.plan.low, best.plan.high)
    planned = view.planned
    assert planned is not None
    for stack, choice in zip(planned.stacks, plans.choices, strict=True):
        assert sum(stack.sizes) == sum(choice.plan.memory.values())
        assert stack.reserved == choice.reserved_bytes
        assert len(stack.sizes) == len(planned.parts)
    assert planned.limit == plans.memory_bytes == 206141652992
    assert planned.front[0].wall_ns == best.plan.ledger.wall_ns
    assert [dot.reserved for dot in planned.front] == sorted((dot.reserved for dot in planned.front), reverse=True)
    assert [dot.wall_ns for dot in planned.front] == sorted(dot.wall_ns for dot in planned.front)
    assert len(planned.front) + len(planned.others) >= len(plans.choices)
    assert plans.scaling is not None
    assert [dot.devices for dot in planned.strong] == [point.devices for point in plans.scaling.strong]
    sources = next(table for table in view.tables if table.title == "Assumptions")
    assert len(sources.rows) == len(plans.claims) + len(best.plan.assumptions)
    assert all(row[-1] for row in sources.rows), "each with its source"


def test_hostile_names_stay_text(plain: dict[str, Any], tmp_path: Path) -> None:
    document = Elements(html.page(view_of_plans(loaded(hostile(plain), tmp_path))))
    assert [tag for tag, _ in document.tags if tag in ("script", "img", "style", "iframe")] == [
        "style", "script", "script",
    ]  # fmt: skip
    assert not re.search("[<\u2028\u2029]", document.inside["script"][0])
    data = json.loads(document.inside["script"][0])
    assert data["title"].startswith(HOSTILE[0])
    assert data["planned"]["summary"] == HOSTILE[6]
    assert data["planned"]["strong"][0]["reason"] == HOSTILE[1]
    for tag, attrs in document.tags:
        assert not any(name.startswith("on") for name in attrs), tag
        assert (attrs.get("href") or "#").startswith(("#", "data:")), tag
    assert not re.search(r"https?://(?!evil|www\.w3\.org)", html.page(view_of_plans(loaded(plain, tmp_path))))


def test_plans_without_a_budget_have_no_scaling_or_days(plain: dict[str, Any], tmp_path: Path) -> None:
    bare = {key: value for key, value in plain.items() if key not in ("scaling", "claims", "tokens", "pareto_front")}
    view = view_of_plans(loaded(bare, tmp_path))
    assert view.planned is not None
    assert not view.planned.strong
    assert view.planned.front, "of the layouts that are shown"
    assert [table.title for table in view.tables] == ["Layouts", "Folded variants", "Assumptions"]
    assert "days" not in view.title


@pytest.mark.parametrize(
    ("path", "value", "values"),
    [
        (("choices",), [], ["$.choices", "0 plans"]),
        (("devices",), 0, ["0 devices"]),
        (("memory_bytes",), -1.0, ["-1 bytes"]),
        (("choices", 0, "bill", "tokens_per_s"), 0, ["$.choices[0].bill", "0 tokens/s"]),
        (("choices", 0, "bill", "days"), -3.0, ["$.choices[0].bill", "-3 days"]),
        (("choices", 0, "plan", "ledger", "wall_ns"), 5, ["$.choices[0].plan.ledger", "5 ns"]),
        (("pareto_front", 0, "wall_ns"), 10**30, ["$.pareto_front[0]", f"{10**30} ns"]),
        (("pareto_front", 0, "devices"), 0, ["$.pareto_front[0]", "0 devices"]),
        (("scaling", "strong", 1, "point"), None, ["$.scaling.strong[1]", "16 devices"]),
        (("scaling", "summary"), 7, ["$.scaling.summary", "int"]),
    ],
    ids=str,
)  # fmt: skip
def test_damaged_document_error_names_the_path(
    plain: dict[str, Any], path: tuple[str | int, ...], value: Any, values: list[str], tmp_path: Path
) -> None:
    document = json.loads(json.dumps(plain))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with refused(BadFile, tmp_path / "plans.json", *values):
        loaded(document, tmp_path)


def test_report_format_follows_the_suffix(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = loaded(plain, tmp_path)
    for ending, has in ((".html", '"planned":{'), (".md", "predicted"), (".csv", "compute/matmul"),
                        (".json", '"basis":"predicted"')):  # fmt: skip
        out = tmp_path / f"report{ending}"
        assert answer(["report", str(tmp_path / "plans.json"), "--out", str(out)]) == 0
        text = out.read_text("utf-8")
        assert has in text.lower() if ending == ".md" else has in text, ending
        if ending == ".md":
            assert f"{plans.best.plan.ledger.wall_ns:,}" in text
    capsys.readouterr()
    assert answer(["report", str(tmp_path / "plans.json"), "--out", str(tmp_path / "x.pftrace")]) == 2
    failure = capsys.readouterr().err
    assert code_of(failure) == "bad-input"
    assert missing_values(failure, tmp_path / "x.pftrace") == []


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [800, 1400])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["plain", "hostile", "bare"])
def test_browser_renders_without_errors(
    plain: dict[str, Any], kind: str, theme: str, width: int, tmp_path: Path
) -> None:
    bare = {key: value for key, value in plain.items() if key not in ("scaling", "claims", "tokens", "pareto_front")}
    document_of_kind = {"plain": plain, "hostile": hostile(plain), "bare": bare}[kind]
    html.write(view_of_plans(loaded(document_of_kind, tmp_path)), tmp_path / "report.html")
    document, complaints = drawn(tmp_path / "report.html", f"#theme={theme}", width=width)
    assert complaints == []
    shown = re.sub(r"(?s)<script.*?</script>", "", document)
    assert not re.search("<img|<svg onload|window.hacked = 1</script", shown)
    assert f'data-theme="{theme}"' in document
    usable = f"{plain['memory_bytes'] * USABLE / 1e9:.1f} GB can be used"
    wanted = ["Step-time ledger", "Predicted step", "Memory of the fullest rank", usable,
              "Time against memory", 'class="band"']  # fmt: skip
    scales = ["Scaling", "Same batch (strong scaling)", 'class="cross"', "Cost against training time"]
    assert [text for text in wanted if text not in shown] == []
    assert all((text in shown) == (kind != "bare") for text in scales)
    assert "NaN" not in shown
    assert "undefined" not in shown
