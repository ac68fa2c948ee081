"""Fixtures and options of all tests: the public data, the store, and tests that this machine cannot run."""

import gc
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres_server import programs, server
from tests.skips import SkipTable

ROOT = Path(__file__).parents[1]
PUBLIC_DATA = Path(os.environ.get("TRAINYARD_PUBLIC_DATA", ROOT.parent / "shared" / "data"))

# No deadline: a shared machine may stall. CI uses the same examples each time; elsewhere, more and new ones are tried.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("search"), derandomize=True, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "search")


def _accelerator() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Rewrite tests/golden/*.json; say why in the commit.")
    parser.addoption("--passed-to", type=Path, metavar="FILE", help="Write there which tests passed.")
    parser.addoption("--not-those-of", type=Path, metavar="FILE", help="Leave out the tests that passed before.")
    parser.addoption("--skip-table", action="store_true", help="Print the skipped tests; see tests/skips.py.")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of background jobs; processes of tests would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):  # a process of pytest-xdist: its reports reach the controller
        return
    if path := config.getoption("--passed-to"):
        config.pluginmanager.register(Passed(path))
    if config.getoption("--skip-table"):
        config.pluginmanager.register(SkipTable())


class Passed:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.names.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(sorted(self.names), indent=0), "utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Retry slow tests once: they start processes, which a stalled machine may delay beyond the test's timeout. The
    summary lists the retries."""
    if path := config.getoption("--not-those-of"):
        before = set(json.loads(path.read_text("utf-8")))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in before])
        items[:] = [item for item in items if item.nodeid not in before]
    for item in items:
        if item.get_closest_marker("slow") or item.path.is_relative_to(ROOT / "tests" / "launch"):
            item.add_marker(pytest.mark.flaky(reruns=1))
    needy = [item for item in items if item.get_closest_marker("device")]
    if needy and not _accelerator():
        for item in needy:
            item.add_marker(pytest.mark.skip(reason="no accelerator on this machine"))


def pytest_collection_finish() -> None:
    """Excludes all that exists now, modules and thousands of tests, from garbage collections, each of which would take
    half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def root() -> Path:
    """The working tree."""
    return ROOT


@pytest.fixture(scope="session")
def public_trace():
    """`public_trace("a100_ddp_resnet.json.gz")` -> its path; skips the test if the public traces are absent."""

    def find(name: str) -> Path:
        path = PUBLIC_DATA / "traces" / name
        if not path.exists():
            pytest.skip(f"the public trace {name} is not on this machine")
        return path

    return find


@pytest.fixture(scope="session")
def foreign_file():
    """`foreign_file("nsys/pipit_saxpy.sqlite")` -> the path of a public file of another profiler; skips the test if it
    is absent."""

    def find(name: str) -> Path:
        path = PUBLIC_DATA / "foreign" / name
        if not path.exists():
            pytest.skip(f"the public file {name} is not on this machine")
        return path

    return find


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    """The URL of a new PostgreSQL database; skips the test if no server or no client library is installed."""
    pytest.importorskip("psycopg")
    if programs() is None:
        pytest.skip("no PostgreSQL server is installed")
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # a socket's path must be short
    try:
        with server(folder) as url:
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _surroundings(tmp_path_factory):
    """Tests use a temporary store, and output has the default width."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_STORE", str(tmp_path_factory.mktemp("store")))
        patch.delenv("COLUMNS", raising=False)
        yield
