"""The server's own pages: what they show, and that hostile names stay text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx2")  # of Starlette's test client

from starlette.testclient import TestClient

from tests.cli.schema_check import valid
from tests.page_views import HOSTILE
from tests.serve.clients import client_of
from tests.serve.conftest import Filled
from tests.serve.served_runs import STEPS, run_of
from trainyard.layout import Layout
from trainyard.serve.markup import element, join, text
from trainyard.store.index.run_index import RunRow
from trainyard.store.store import Store

PLAN = "model=llama3-8b&machine=h100&devices=64&batch=512&seq_len=8192"


class Page(HTMLParser):
    """The elements of a page, its text, and the addresses that it names."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if tag == "script":
            media_type = attributes.get("type") or ""
            self.scripts[media_type] = self.scripts.get(media_type, "") + data
        self.texts.append(data)

    def inside(self, media_type: str) -> str:
        """The text of the script of this type."""
        return self.scripts[media_type]

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def links(self) -> list[str]:
        return [str(attributes["href"]) for tag, attributes in self.tags if tag == "a"]


def checked_page(client: TestClient, target: str, status: int = 200) -> Page:
    """A page, after asserting that nothing in it runs or loads but the server's own files."""
    answer = client.get(target)
    assert answer.status_code == status, target
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Page(answer.text)
    for tag, attributes in page.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        if tag == "script" and "data-report" not in attributes:
            assert attributes.get("type") == "application/json" or str(attributes.get("src", "/static/")).startswith(
                "/static/"
            )
        for name in ("href", "src", "action"):
            address = attributes.get(name)
            assert address is None or re.match(r"/(?!/)|#|data:image/svg", address), address
    return page


def test_the_list_shows_the_runs_and_their_facts(client: TestClient, filled: Filled) -> None:
    page = checked_page(client, "/runs")
    rows = {row["id"]: row for row in client.get("/api/runs?per_page=50").json()["runs"]}
    assert {f"/runs/{id}" for id in rows} <= set(page.links())
    assert all(word in page.text for word in ("nightly", "baseline", "damaged", "failed", "incomplete"))
    assert "365" in page.text or "364" in page.text


def test_pages_of_the_list_hold_every_run_once(client: TestClient) -> None:
    ids: list[str] = []
    target = "/runs?per_page=7"
    while target:
        page = checked_page(client, target)
        ids += [link.removeprefix("/runs/") for link in page.links() if re.fullmatch(r"/runs/[0-9a-f]{8}", link)]
        target = next((str(a["href"]) for tag, a in page.tags if tag == "a" and a.get("rel") == "next"), "")
    assert ids == [row["id"] for row in client.get("/api/runs?per_page=1000").json()["runs"]]


def test_filters_stay_in_the_form(client: TestClient) -> None:
    page = checked_page(client, "/runs?job=moe-finetune&state=failed&q=dp")
    values = {attributes.get("name"): attributes.get("value") for tag, attributes in page.tags if tag == "input"}
    assert (values["job"], values["q"]) == ("moe-finetune", "dp")
    assert ("option", {"value": "failed", "selected": None}) in page.tags
    assert len([link for link in page.links() if re.fullmatch(r"/runs/[0-9a-f]{8}", link)]) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text(tmp_path: Path, name: str) -> None:
    name = name.replace("\x00", "").replace("\ud800", "")
    store = Store(tmp_path, say=lambda _: None)
    runs = [run_of(number, name, Layout(), number > 7, name) for number in range(13)]
    for run in runs:
        store.begin(run, "")
        store.finish(run)
    with client_of(tmp_path) as client:
        job = quote(name, safe="")
        targets = ["/runs", "/history", f"/history?job={job}", f"/runs?job={job}", f"/runs?q={job}&host={job}",
                   f"/compare?base={runs[0].id}&new={runs[9].id}", "/compare", f"/runs/{runs[0].id}"]  # fmt: skip
        for target in targets:
            page = checked_page(client, target)
            assert "alert" not in "".join(str(a) for tag, a in page.tags if tag == "script")
            assert "\u202e" not in page.text
            assert "\x1b" not in page.text
        assert len(client.get(f"/api/runs?job={job}").json()["runs"]) == 13
        checked_page(client, f"/history?job={quote('other ' + name, safe='')}", 404)
        checked_page(client, f"/runs/{job}", 404)


def test_the_comparison_shows_differences_and_changes(client: TestClient, filled: Filled) -> None:
    before, after, damaged = (filled.ids[name] for name in ("before", "after", "damaged"))
    page = checked_page(client, f"/compare?base={before}&new={after}")
    data = json.loads(page.inside("application/json"))
    document = client.get(f"/api/compare?base={before}&new={after}").json()
    assert data["comparisons"][0]["changes"] == document["changes"]
    assert all(word in json.dumps(data) for word in ("2.10.0", "2.11.0"))
    assert f"/compare?base={after}&new={before}" in page.links()
    form = checked_page(client, f"/compare?new={after}")
    assert [attributes["value"] for tag, attributes in form.tags if attributes.get("name") in ("base", "new")] == [
        "",
        after,
    ]
    assert "damaged" in json.dumps(checked_page(client, f"/compare?base={before}&new={damaged}").texts)
    checked_page(client, f"/compare?base={before}&new=00000000", 404)


def test_the_history_has_the_change_and_the_account(client: TestClient) -> None:
    content = client.get("/history?job=llama3-8b-pretrain").text
    assert '"kind":"step"' in content
    assert "Exposed reduce-scatter" in content
    assert "/runs?job=llama3-8b-pretrain" in checked_page(client, "/history").links()


def test_a_plan_is_answered_without_scripts(client: TestClient) -> None:
    page = checked_page(client, f"/plan?{PLAN}")
    best = client.get(f"/api/plan?{PLAN}").json()["choices"][0]["plan"]["job"]["layout"]
    assert f"dp_shard {best['dp_shard']}" in page.text
    (report,) = (link for link in page.links() if link.startswith("/plan/report?"))
    assert '"planned":{' in client.get(report).text
    assert "80 %" in page.text
    checked_page(client, "/plan")
    assert "devices" in checked_page(client, "/plan?model=llama3-8b&machine=h100&devices=x", 400).text


def test_an_empty_store_says_how_to_begin(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        with client_of(root) as client:
            assert "trainyard run" in checked_page(client, "/runs").text
            assert client.get("/api/runs").json()["runs"] == []
            for target in ("/history", "/compare", "/plan"):
                checked_page(client, target)
    assert not (tmp_path / "absent").exists()


def test_a_run_in_progress_is_shown_live(client: TestClient, filled: Filled) -> None:
    live = filled.ids["live"]
    page = checked_page(client, f"/runs/{live}")
    assert all(word in page.text for word in ("25", "of 40", "rank 17"))
    assert [attributes for tag, attributes in page.tags if tag == "script" and "live_run" in str(attributes["src"])]
    assert "<canvas" not in client.get(f"/runs/{live}?report=1").text


def test_events_of_a_run_that_has_ended_end(client: TestClient, filled: Filled) -> None:
    answer = client.get(f"/api/runs/{filled.ids['before']}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.strip().split("\n\n")
    assert [event.splitlines()[0] for event in events] == ["event: update", "event: ended"]
    update = valid("live-run", events[0].splitlines()[1].removeprefix("data: "))
    assert (update["state"], update["steps"], len(update["new_steps"])) == ("complete", STEPS, STEPS)


NAMES = st.text(max_size=20) | st.sampled_from(HOSTILE)


@given(NAMES, NAMES)
def test_markup_escapes_every_text(name: str, value: str) -> None:
    content = element("p", name, element("a", value, href=value), None, join(name, value), title=name)
    page = Page(content)
    assert [tag for tag, _ in page.tags] == ["p", "a"]
    assert page.tags[0][1] == {"title": Page(text(name)).text if name else ""} or "&" in name
    assert "\u202e" not in content


def test_rows_of_any_length_are_a_page() -> None:
    from trainyard.serve.pages.runs_page import choices_of, runs_page
    from trainyard.serve.run_filter import RunFilter, apply

    row = RunRow(
        id="0" * 8, started="not a time", job="\ud800" * 10000, layout="x" * 10000, state="other", step_ns=10**18,
        tokens_per_s=1e300, tags=("t",) * 50,
    )  # fmt: skip
    content = runs_page(RunFilter(), apply(RunFilter(), [row]), choices_of([row]), "store")
    assert content.encode("utf-8")
