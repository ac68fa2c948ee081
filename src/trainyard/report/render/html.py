"""Renders a `View`, the content of a report as plain data, as one self-contained HTML page: no network, no library, no
build step.

Names in traces are hostile input. They reach the page only inside a JSON block whose `<` are escaped, or inside
the packed timeline, and the script puts them on the screen by `textContent` alone. The content security policy
allows exactly the one script and the one style of this page, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.formats.atomic import write_text
from trainyard.formats.protobuf import packed_varints
from trainyard.ledger import encode_hook
from trainyard.printable import printable, printable_tree
from trainyard.report.view.view import Lane, Timeline, View

SCRIPTS = ("base", "export", "frame", "waterfall", "ranks", "lanes", "marks", "timeline", "controls", "tables", "main")
"""The JavaScript files of a page in order of use; they share one scope."""
PLANNED = ("base", "export", "frame", "waterfall", "plot", "stacks", "front", "scaling", "tables", "plans")
"""The JavaScript files of a page of plans."""


def page(view: View) -> str:
    """The HTML document of a view, with its data, scripts and styles inside."""
    plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(view, timeline=None), enc_hook=encode_hook)
    if view.timeline is not None:
        plain["timeline"] = pack(view.timeline)
    plain["severities"] = {name: [word.colour, word.means] for name, word in words.SEVERITIES.items()}
    plain["prices"] = {name: [word.label, word.means] for name, word in words.PRICES.items()}
    return document(view.title, plain, SCRIPTS if view.planned is None else PLANNED)


def document(title: str, plain: dict[str, Any], scripts: tuple[str, ...]) -> str:
    """A page with the JSON of `plain` and the `scripts` of the folder page/ that draw it; the last of them runs the
    others."""
    style, script = _part("page.css"), _script(scripts)
    # Inside a script element, JSON must not close it.
    data = _json(printable_tree(plain)).replace("<", "\\u003c")
    return Template(_part("page.html")).substitute(
        policy=_policy(style, script), title=html.escape(printable(title)), style=style, script=script, data=data
    )


def write(view: View, path: Path) -> None:
    """Writes the page of a view. Raises `PlaceUnwritable`."""
    write_text(page(view), path)


@cache
def notebook_frame(view: View) -> str:
    """The page of a view, as a frame of a notebook."""
    return frame(page(view))


def frame(text: str) -> str:
    """A page in an iframe, which isolates the styles and scripts of page and notebook."""
    return (
        f'<iframe srcdoc="{html.escape(text)}" sandbox="allow-scripts allow-downloads" '
        'style="width: 100%; height: 720px; border: 0"></iframe>'
    )


def _part(name: str) -> str:
    """A file of the folder page/."""
    return resources.files("trainyard.report").joinpath("page", name).read_text(encoding="utf-8")


@cache
def _script(scripts: tuple[str, ...]) -> str:
    """The JavaScript files `scripts` (names without suffix) as one script in a scope of its own."""
    return '(() => {\n"use strict";\n' + "\n".join(_part(f"{name}.js") for name in scripts) + "})();\n"


def _policy(style: str, script: str) -> str:
    """The content security policy that allows exactly this style and this script, by their SHA-256 digests."""

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    # Images: the tab icon, and charts that are exported as PNG. Nothing else may be fetched.
    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def pack(timeline: Timeline) -> dict[str, Any]:
    """The timeline as the page reads it, its slices packed: about 5 bytes each, exact to the ns.

    A kind is a pair of name and look (index into the legend). `looks[k]` and `names[k]` are the look and name of kind
    k, commonest first, so that most kinds fit one byte. `slices` is base64 of zlib of three columns of varints, lane
    after lane: gap to the slice before in ns, length in ns, kind.
    """
    lanes, look_count = timeline.lanes, max(1, len(timeline.legend))
    gaps = _column([_gaps(lane) for lane in lanes])
    lengths = _column([lane.lengths for lane in lanes])
    pairs = _column([lane.name for lane in lanes]) * look_count + _column([lane.look for lane in lanes])
    # `pairs`: of each slice, name * looks + look. `kinds`: of each slice, the rank of its pair by frequency.
    distinct, inverse, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rank_of_pair = np.empty_like(order)
    rank_of_pair[order] = np.arange(len(order))
    distinct, kinds = distinct[order], rank_of_pair[inverse]
    names = [timeline.names[pair // look_count] for pair in distinct.tolist()]
    return {
        "length": timeline.length_ns,
        "legend": msgspec.to_builtins(timeline.legend),
        "lanes": [[lane.rank, lane.label, len(lane.starts)] for lane in timeline.lanes],
        "looks": (distinct % look_count).tolist(),
        "names": _squeeze(_json(printable_tree(names)).encode()),
        "slices": _squeeze(b"".join(packed_varints(column.astype(np.uint64)) for column in (gaps, lengths, kinds))),
        "steps": timeline.steps,
        "events": timeline.events,
        "merged": timeline.merged,
        "aligned": timeline.aligned,
        "alignment": words.ALIGNMENTS[timeline.aligned].means,
    }


def _gaps(lane: Lane) -> NDArray[np.int64]:
    """Time in ns from the end of each slice's predecessor (0 for the first) to its start. Raises `ValueError` if slices
    overlap."""
    gaps = np.diff(np.asarray(lane.starts, np.int64), prepend=0)
    gaps[1:] -= np.asarray(lane.lengths, np.int64)[:-1]
    if len(gaps) and gaps.min() < 0:
        raise ValueError(f"slices of lane {lane.label!r} overlap or are out of order")
    return gaps


def _column(parts: Iterable[Sequence[int] | NDArray[np.int64]]) -> NDArray[np.int64]:
    """Concatenates columns, of which there may be none."""
    return np.concatenate([np.zeros(0, np.int64), *(np.asarray(part, np.int64) for part in parts)])


def _json(value: object) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _squeeze(data: bytes) -> str:
    """The bytes compressed by zlib, as base64 text."""
    return base64.b64encode(zlib.compress(data, 9)).decode()
