"""axe-core's rules of accessibility on the pages of a server, in light and dark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from tests.serve.browser import BROWSER, Tab, browser
from tests.serve.clients import running_server
from tests.serve.conftest import Filled

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
PLAN = "model=llama3-8b&machine=h100&devices=64&batch=512&seq_len=8192"
VIOLATIONS = """
axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations.map(
  ({id, nodes}) => `${id}: ${nodes.slice(0, 3).map(({html, any}) => `${html} ${any[0]?.message ?? ""}`).join(" | ")}`))
"""


def page_addresses(ids: dict[str, str]) -> dict[str, str]:
    """Kind of page -> its address. `ids`: of the notable runs, as of `fill`."""
    return {
        "list": "/runs",
        "filtered list": "/runs?state=failed&page=1",
        "empty list": "/runs?q=nosuchrun",
        "run": f"/runs/{ids['after']}",
        "hostile run": f"/runs/{ids['hostile']}",
        "failed run": f"/runs/{ids['failed']}",
        "damaged run": f"/runs/{ids['damaged']}",
        "run in progress": f"/runs/{ids['live']}",
        "comparison form": "/compare",
        "comparison": f"/compare?base={ids['before']}&new={ids['after']}",
        "jobs": "/history",
        "history": "/history?job=llama3-8b-pretrain",
        "plan form": "/plan",
        "plan": f"/plan?{PLAN}",
        "plan report": f"/plan/report?{PLAN}",
        "login": "/login",
        "error": "/runs/00000000",
    }


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.skipif(not AXE.is_file(), reason="the browser's driver is not installed: npm ci")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_have_no_violations(filled: Filled, tmp_path: Path, dark: bool) -> None:
    violations: dict[str, list[str]] = {}
    with running_server(filled.root) as url, browser(tmp_path) as tab:
        for kind, address in page_addresses(filled.ids).items():
            tab.open(url + address, dark=dark)
            _wait_until_drawn(tab)
            if broken_rules := find_violations(tab):
                violations[kind] = broken_rules
    assert not violations, json.dumps(violations, indent=1)


def find_violations(tab: Tab) -> list[str]:
    """The rules that the page of a tab violates, each with the first elements."""
    tab.evaluate(AXE.read_text("utf-8"))
    return tab.evaluate(VIOLATIONS)


def _wait_until_drawn(tab: Tab) -> None:
    """Waits for the content of a page: its heading, and on a report also the foot."""
    tab.wait_for(
        "document.querySelectorAll('h1').length && (!window.data || document.querySelectorAll('footer').length)"
    )
