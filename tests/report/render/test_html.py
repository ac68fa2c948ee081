"""The HTML page: exact, small, safe against hostile names, readable in both themes, rendered by a real browser."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.page_views import HOSTILE, VIEWS, many_ranks, names, timeline, view
from tests.refused import refused
from trainyard import report, words
from trainyard.errors import PlaceUnwritable
from trainyard.formats.protobuf import packed_varints, read_varint
from trainyard.printable import printable
from trainyard.report.render import html, packed_timeline
from trainyard.report.view.view import Lane, Legend, Timeline

PAGE = Path(report.__file__).parent / "page"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


class Elements(HTMLParser):
    """The elements of a document, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self.now = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.now = tag
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag):
        self.now = ""

    def handle_data(self, data):
        if self.now in self.inside:
            self.inside[self.now][-1] += data


def unvarint(data: bytes) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = read_varint(memoryview(data), at, len(data))
        values.append(value)
    return values


def inflate(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def unpacked(packed: dict) -> list[Lane]:
    """The lanes that the page's script decodes from a packed timeline, with names and looks in its numbering."""
    total = sum(count for _, _, count, *_ in packed["lanes"])
    values = unvarint(inflate(packed["slices"]))
    gaps, lengths, kinds = (values[at * total : (at + 1) * total] for at in range(3))
    lanes, first = [], 0
    for rank, label, count, *_ in packed["lanes"]:
        part = slice(first, first + count)
        ends = np.cumsum(np.array(gaps[part], int) + np.array(lengths[part], int))
        starts = (ends - np.array(lengths[part], int)).tolist()
        looks = [packed["looks"][kind] for kind in kinds[part]]
        lanes.append(Lane(rank=rank, label=label, starts=starts, lengths=lengths[part], name=kinds[part], look=looks))
        first += count
    return lanes


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_varint_round_trip(values):
    assert unvarint(packed_varints(np.array(values, np.uint64))) == values


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**12), st.integers(0, 3), st.integers(0, 1))),
        max_size=4,
    )
)
def test_packing_keeps_every_slice_exactly(lanes):
    expected_lanes = []
    for rank, slices in enumerate(lanes):
        ends = np.cumsum([gap + length for gap, length, _, _ in slices]).tolist()
        starts = [int(end) - length for end, (_, length, _, _) in zip(ends, slices)]
        columns = [list(column) for column in zip(*slices)] or [[], [], [], []]
        expected_lanes.append(
            Lane(rank=rank, label=f"stream {rank}", starts=starts, lengths=columns[1], name=columns[2], look=columns[3])
        )
    given_names = ["a", "b", "<c>", "\ud800"]
    line = Timeline(
        length_ns=1,
        names=given_names,
        legend=(Legend(label="x", colour="#000000"), Legend(label="y", colour="#ffffff")),
        lanes=tuple(expected_lanes),
        steps=(),
        events=0,
    )
    packed = packed_timeline.pack_timeline(line)
    kinds = json.loads(inflate(packed["names"]))
    for before, after in zip(expected_lanes, unpacked(packed), strict=True):
        assert (after.starts, after.lengths, after.look) == (before.starts, before.lengths, before.look)
        assert [kinds[kind] for kind in after.name] == [
            given_names[name].replace("\ud800", "⟨U+D800⟩") for name in before.name
        ]


def test_overlapping_slices_are_refused():
    lane = Lane(rank=0, label="stream 7", starts=[0, 5], lengths=[6, 1], name=[0, 0], look=[0, 0])
    line = Timeline(
        length_ns=6, names=["a"], legend=(Legend(label="x", colour="#000000"),), lanes=(lane,), steps=(), events=2
    )
    with refused(ValueError, "'stream 7'"):
        packed_timeline.pack_timeline(line)


def test_64_ranks_and_100k_device_events_stay_under_1100_kB():
    assert len(html.page(view()).encode()) < 1_100_000


def test_page_of_1024_ranks_stays_under_2_MB():
    assert len(html.page(many_ranks()).encode()) < 2_000_000


def test_names_are_stored_once():
    text = json.dumps(packed_timeline.pack_timeline(timeline(2, 2000)))
    assert len(text) < 2000 * 9 + sum(map(len, names()))


def test_hostile_names_stay_text():
    document = Elements(html.page(view(4, 400, hostile=True)))
    assert [tag for tag, _ in document.tags if tag in ("script", "img", "style", "iframe")] == [
        "style",
        "script",
        "script",
    ]
    data = json.loads(document.inside["script"][0])
    assert data["title"] == HOSTILE[0]
    assert tuple(row["name"] for row in data["kernels"])[: len(HOSTILE)] == tuple(
        printable(name, keep="\n\t") for name in HOSTILE
    )
    assert not re.search("[<\u2028\u2029\u202e\x00\x1b]", document.inside["script"][0])
    assert "⟨U+202E⟩evil⟨U+0000⟩⟨U+001B⟩[31m" in document.inside["script"][0]
    assert document.inside["title"] == [f"{HOSTILE[0]} · trainyard"]


def test_content_security_policy_allows_only_own_script_and_style():
    document = Elements(html.page(view(1, 0)))
    policy = next(
        attrs["content"] for tag, attrs in document.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    for rule, text in (("script-src", document.inside["script"][1]), ("style-src", document.inside["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    for tag, attrs in document.tags:
        assert "style" not in attrs
        assert not any(name.startswith("on") for name in attrs)
        assert not attrs.get("src")
        assert (attrs.get("href") or "#").startswith(("#", "data:")), tag


def test_scripts_never_write_html():
    for path in PAGE.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(|XMLHttp|</script",
            text,
        ), path.name


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("ground", ["card", "page", "chosen", "warn"])
@pytest.mark.parametrize("ink", ["ink", "dim", "accent", "bad", "good"])
def test_text_contrast_in_both_themes(ground, ink):
    """WCAG 2.2, 1.4.3: text has a contrast of 4.5 at least."""
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    pairs = {name: colours for name, *colours in re.findall(r"--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    for theme in (0, 1):
        low, high = sorted((luminance(pairs[ground][theme]), luminance(pairs[ink][theme])))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_writes_are_atomic(tmp_path):
    path = tmp_path / "report.html"
    html.write(view(1, 0), path)
    html.write(view(2, 100), path)
    assert path.read_text(encoding="utf-8") == html.page(view(2, 100))
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_unwritable_path_is_named(tmp_path):
    (tmp_path / "file").write_text("here")
    with refused(PlaceUnwritable, tmp_path / "file" / "report.html") as caught:
        html.write(view(1, 0), tmp_path / "file" / "report.html")
    assert caught.value.next_step
    (tmp_path / "folder").mkdir()
    with refused(PlaceUnwritable, tmp_path / "folder"):
        html.write(view(1, 0), tmp_path / "folder")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


def drawn(path: Path, state: str = "", width: int = 1400) -> tuple[str, list[str]]:
    """The document after a browser ran it, and the browser's console messages."""
    profile = f"--user-data-dir={path.parent / 'profile'}"
    quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", profile]
    options = ["--virtual-time-budget=4000", f"--window-size={width},2400", "--dump-dom", f"{path.as_uri()}{state}"]
    command = [str(BROWSER), *quiet, *options]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode(), [
        line for line in done.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line
    ]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("called", "has"),
    [
        ("large", ["99,904 events · ", "rank 37 is the one that comes late", "71.8 ms", 'aria-sort="descending"']),
        (
            "hostile",
            [
                "2,000 events · ",
                "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;</h1>",
                "lone ⟨U+D800⟩ surrogate",
                "⟨U+202E⟩evil",
            ],
        ),
        (
            "many",
            [
                "all streams of 2 of 1,024 ranks",
                "▸ 8 ranks · +23.0 ms Exposed all-gather",
                "×1015",
                'aria-pressed="true">similar steps',
            ],
        ),
        ("two", ["The clocks of the ranks are not aligned", "These two runs are not comparable", "spread "]),
        ("bare", ["No events were recorded", "One rank was recorded", "left out of the mean", "418,004,000"]),
    ],
)
def test_browser_renders_without_errors(tmp_path, called, has):
    html.write(VIEWS[called](), tmp_path / "report.html")
    document, complaints = drawn(tmp_path / "report.html")
    assert complaints == []
    assert [text for text in has if text not in document] == []
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b-\u200f\u061c\x1b]", document)
    assert not re.search("<img|<svg onload|window.hacked = 1</script", re.sub(r"(?s)<script.*?</script>", "", document))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("changes", "has", "lacks"),
    [
        (
            "network=2x",
            ["59,000,007", "59.0 ms recovered", "50.0 ms to 68.0 ms over 20 steps", 'aria-valuetext="2× as fast"'],
            [],
        ),
        ("no-stragglers", ["428.0", "longer", "Cannot tell it from no change"], ["recovered,"]),
        ("network=3x", ["interpolated between the replays at 2× and 4×", "--change network=3x"], ["80 % interval"]),
        ("no-stragglers,network=2x", ["not computed", "--change no-stragglers --change network=2x"], ["recovered,"]),
        ("memory=2x", ["as measured", "No such work."], ["not computed"]),
    ],
)
def test_the_address_sets_the_what_if_sliders(tmp_path, changes, has, lacks):
    html.write(view(2, 400), tmp_path / "report.html")
    document, complaints = drawn(tmp_path / "report.html", f"#whatif={quote(changes)}")
    section = re.search(r'(?s)<section id="whatif".*?</section>', document)[0]
    assert complaints == []
    assert [text for text in has if text not in section] == []
    assert [text for text in lacks if text in section] == []
    assert re.search(r'<input type="range" min="1" max="4"', section)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [800, 1400])
def test_charts_are_drawn_with_hostile_names_as_text(tmp_path, width):
    html.write(view(2, 400, hostile=True), tmp_path / "report.html")
    document, complaints = drawn(tmp_path / "report.html", "#theme=dark", width)
    assert complaints == []
    sections = dict(re.findall(r'(?s)<section id="(\w+)"(.*?)</section>', document))
    marks = {"series": 2, "roofline": 2, "busbandwidth": 8, "goodput": len(words.TIMES)}
    for name, count in marks.items():
        assert sections[name].count('role="listitem"') == count, name
    assert sections["pipeline"].count('class="pass"') == 12
    for name in ("series", "roofline", "busbandwidth", "goodput", "pipeline", "memory", "experts", "whatif"):
        assert [text for text in ("CSV", "PNG", "SVG") if f"save as {text}" not in sections[name]] == []
        assert "NaN" not in sections[name]
    assert sections["memory"].count('class="body"') == 3
    assert sections["experts"].count("<option") == 7
    for name in ("series", "roofline", "busbandwidth", "experts", "facts0", "facts1", "whatif"):
        assert "img src=x" in sections[name]
        assert "<img" not in sections[name]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_url_holds_the_state(tmp_path):
    html.write(view(4, 2000), tmp_path / "report.html")
    state = "#theme=dark&rank=2&account=comm%2Fall_gather%40dp_shard&q=nccldevkernel_all&t=1000000-9000000"
    document, complaints = drawn(tmp_path / "report.html", state, width=800)
    assert complaints == []
    assert 'data-theme="dark"' in document
    assert re.search(r"<output>[\d,]+ matches · ", document)
    assert 'class="selected"' in document
    assert re.search(r'aria-label="Exposed all-gather[^>]*aria-pressed="true"', document)
    assert int(re.search(r"([\d,]+) slices in view", document)[1].replace(",", "")) < 400


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("state", "columns", "pressed"),
    [
        ("", 3, "similar steps"),
        ("#open=1", 10, "similar steps"),
        ("#open=1,2", 128, "similar steps"),
        ("#rank=9", 4, "similar steps"),
        ("#by=host", 128, "node"),
        ("#by=stage&open=0", 87, "pipeline stage"),
        ("#by=late", 128, "lateness"),
        ("#by=rank", 128, "rank"),
        ("#by=nonsense&open=99", 3, "similar steps"),
    ],
)
def test_many_ranks_are_folded_as_the_url_states(many_ranks_page, state, columns, pressed):
    document, complaints = drawn(many_ranks_page, state)
    assert complaints == []
    rows = len(many_ranks(64).heat.accounts)
    assert document.count('class="cell"') == columns * rows
    assert f'aria-pressed="true">{pressed}</button>' in document


@pytest.fixture(scope="module")
def many_ranks_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "report.html"
    html.write(many_ranks(), path)
    return path
