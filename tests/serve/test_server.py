"""The command `trainyard serve` as a process: its options, readers while others write, and its pages in a browser."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from click.testing import CliRunner

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx2")  # of Starlette's test client

from tests.cli.schema_check import valid
from tests.refused import code_of, refused
from tests.serve.browser import BROWSER, Tab, browser
from tests.serve.clients import running_server
from tests.serve.conftest import Filled
from tests.serve.served_runs import append_samples, begin_live, run_of
from tests.stored import stored
from trainyard.cli.main import answer, cli
from trainyard.errors import BadInput, MissingLibrary, PortInUse
from trainyard.layout import Layout
from trainyard.record import Run
from trainyard.serve.server import listen, url_of
from trainyard.store.store import Store

READERS, WRITERS, RUNS = 8, 3, 6
TOKEN = "a-token-of-32-characters-for-test"  # noqa: S105


def get(url: str, **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as response:  # noqa: S310
        return response.read()


@pytest.mark.slow
def test_readers_see_every_run_while_writers_add_them(tmp_path: Path) -> None:
    """Each writer asks for its run at once; no reader gets an error."""
    _read_while_writing(tmp_path / "store")


def _read_while_writing(root: Path, **environment: str) -> None:
    first = stored(Store(root)).id
    problems: list[str] = []
    written: set[str] = {first}
    ending = threading.Event()

    def write(url: str) -> None:
        for _ in range(RUNS):
            id = stored(Store(root)).id
            rows = json.loads(get(f"{url}/api/runs?q={id}"))["runs"]
            if [(row["id"], row["state"]) for row in rows] != [(id, "complete")]:
                problems.append(f"{id}: {rows}")
            written.add(id)

    def read(url: str) -> None:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        while not ending.is_set():
            for target in ("/runs", f"/api/runs/{first}", f"/compare?base={first}&new={first}", "/history"):
                connection.request("GET", target)
                response = connection.getresponse()
                if response.read() == b"" or response.status != 200:
                    problems.append(f"{target}: {response.status}")
                    return

    with running_server(root, **environment) as url:
        writers = [threading.Thread(target=write, args=(url,)) for _ in range(WRITERS)]
        readers = [threading.Thread(target=read, args=(url,)) for _ in range(READERS)]
        for thread in (*readers, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        ending.set()
        for thread in readers:
            thread.join()
        listed = {row["id"] for row in json.loads(get(f"{url}/api/runs?per_page=1000"))["runs"]}
    assert problems == []
    assert listed == written
    assert len(written) == 1 + WRITERS * RUNS


@pytest.mark.slow
def test_a_store_with_its_index_in_postgresql_is_served(tmp_path: Path, postgres_url: str) -> None:
    _read_while_writing(tmp_path / "store", TRAINYARD_INDEX=postgres_url)


@pytest.mark.slow
def test_the_command_prints_its_address_and_needs_the_token(filled: Filled, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    options = ("--host", "127.0.0.1", "--token-file", str(tmp_path / "token"))
    with running_server(filled.root, *options) as url:
        runs = json.loads(get(f"{url}/api/runs", authorization=f"Bearer {TOKEN}"))["runs"]
        assert len(runs) == 50
        with pytest.raises(urllib.error.HTTPError) as error:
            get(f"{url}/api/runs", authorization="Bearer wrong")
        assert error.value.code == 401


def test_another_address_without_a_token_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["serve", "--host", "0.0.0.0", "--json"]) == BadInput.exit_code  # noqa: S104
    printed = capsys.readouterr()
    assert valid("error", printed.out)["code"] == code_of(printed.err) == "bad-input"


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with refused(PortInUse, port):
            listen("127.0.0.1", port)
    with pytest.raises(BadInput):
        listen("no such host", 0)


def test_the_address_is_one_for_a_browser() -> None:
    with listen("127.0.0.1", 0) as listening:
        assert url_of(listening) == f"http://127.0.0.1:{listening.getsockname()[1]}/"
    with listen("0.0.0.0", 0) as listening:  # noqa: S104
        assert url_of(listening) == f"http://{socket.gethostname()}:{listening.getsockname()[1]}/"


def test_without_the_extra_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("trainyard.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    result = CliRunner().invoke(cli, ["serve", "--port", "0"])
    assert isinstance(result.exception, MissingLibrary)
    assert "trainyard[serve]" in str(result.exception)


def test_a_request_that_is_not_http_does_not_stop_the_server(filled: Filled) -> None:
    with running_server(filled.root) as url:
        address = urlsplit(url)
        for sent in (
            b"\x16\x03\x01\x02",
            b"GET /runs HTTP/1.1\r\n\r\n",
            b"A" * 100_000,
            b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
        ):
            with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                try:
                    received = connection.recv(100)
                except ConnectionResetError:
                    received = b""
                assert not received or re.match(rb"HTTP/1.1 4\d\d ", received)
        assert get(f"{url}/api/runs")


PAGES = ("/runs", "/runs?page=2", "/history", "/history?job=llama3-8b-pretrain", "/compare", "/login")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_pages_work_in_a_browser(filled: Filled, tmp_path: Path) -> None:
    ids = filled.ids
    pages = (*PAGES, f"/compare?base={ids['before']}&new={ids['after']}", *(f"/runs/{id}" for id in ids.values()))
    live, folder = begin_live(Store(filled.root), "followed", steps=2)
    with running_server(filled.root) as url, browser(tmp_path) as tab:
        for page in pages:
            tab.open(url + page)
            tab.wait_for("document.querySelector('h1') !== null")
        assert tab.complaints == []
        _filter_while_typing(tab, url)
        _choose_and_compare(tab, url, ids["before"], ids["after"])
        _plan_while_sliding(tab, url)
        _keep_the_theme(tab, url, ids["before"])
        _follow(tab, url, live, folder)
        assert tab.complaints == []


def _filter_while_typing(tab: Tab, url: str) -> None:
    """The list follows the form, and so does the address."""
    tab.open(f"{url}/runs")
    tab.evaluate("document.querySelector('[name=q]').value = 'moe'")
    tab.evaluate("document.querySelector('[name=q]').dispatchEvent(new Event('input', {bubbles: true}))")
    tab.wait_for("location.search === '?q=moe'")
    assert tab.evaluate("document.querySelectorAll('#results tbody tr').length") == 20


def _choose_and_compare(tab: Tab, url: str, base: str, new: str) -> None:
    """Two runs are chosen in the list and compared, with the keyboard's focus and the button alone."""
    tab.open(f"{url}/runs?per_page=100")
    for side, id in (("base", base), ("new", new)):
        tab.evaluate(f"document.querySelector('[name={side}][value=\"{id}\"]').click()")
    tab.evaluate("document.querySelector('form[action=\"/compare\"] .primary').click()")
    tab.wait_for("location.pathname === '/compare' && document.readyState === 'complete'")
    assert set(tab.evaluate("location.search")[1:].split("&")) == {f"base={base}", f"new={new}"}
    tab.wait_for("document.querySelectorAll('main table').length > 0")


def _plan_while_sliding(tab: Tab, url: str) -> None:
    """A slider sets the number of devices, and the search answers."""
    tab.open(f"{url}/plan?model=llama3-8b&machine=h100&devices=64&batch=512&seq_len=8192")
    slider = "document.querySelector('[data-power-of=devices]')"
    assert tab.evaluate(f"{slider}.value") == "6"
    before = tab.evaluate("document.querySelector('#results .summary').textContent")
    tab.evaluate(f"{slider}.value = 7; {slider}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    tab.wait_for("location.search.includes('devices=128') && !document.querySelector('[aria-busy]')", 60)
    assert tab.evaluate("document.querySelector('#results .summary').textContent") != before


def _keep_the_theme(tab: Tab, url: str, run: str) -> None:
    """A theme that was chosen holds for the other pages and for reports."""
    tab.open(f"{url}/runs?per_page=100")
    tab.evaluate("document.getElementById('theme').click()")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    tab.evaluate(f"document.querySelector('a[href=\"/runs/{run}\"]').click()")
    tab.wait_for(f"location.pathname === '/runs/{run}' && document.documentElement.dataset.theme === 'dark'")


def _follow(tab: Tab, url: str, run: Run, folder: Path) -> None:
    """Steps appear as they are written, and the end is shown."""
    tab.open(f"{url}/runs/{run.id}")
    tab.wait_for("document.querySelectorAll('#live path').length === 2")
    append_samples(folder, run_of(90, "followed", Layout(), True, "").samples[2:9])
    tab.wait_for("document.getElementById('live-step').textContent === '9'")
    Store(folder.parents[1]).finish(msgspec.structs.replace(run, state="failed", failure="rank 1 ended"))
    tab.wait_for("!document.getElementById('live-ended').hidden")
    assert tab.evaluate("document.querySelector('#live-state').textContent") == "failed"


def test_help_does_not_import_the_server() -> None:
    code = "import sys; from trainyard.cli.main import answer; answer(['serve', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"starlette", "uvicorn", "numpy"} & set(done.stdout.splitlines()[-1].split())
