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
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import msgspec

from trainyard import words
from trainyard.formats.atomic import write_text
from trainyard.ledger import encode_hook
from trainyard.printable import printable, printable_tree
from trainyard.report.render.bundle import bundle, page_file
from trainyard.report.render.packed_timeline import compact_json, pack_timeline
from trainyard.report.render.static_html import view_html
from trainyard.report.view.view import View


class SiteFrame(NamedTuple):
    """HTML that a server puts into a page: `header`: links next to the name; `crumbs`: above the content."""

    header: str = ""
    crumbs: str = ""


NO_SITE = SiteFrame()
"""A page that is a file of its own."""


def page(view: View, site: SiteFrame = NO_SITE) -> str:
    """The HTML document of a view, with its data, scripts and styles inside. `site`: the navigation of a server."""
    plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(view, timeline=None), enc_hook=encode_hook)
    if view.timeline is not None:
        plain["timeline"] = pack_timeline(view.timeline)
    plain["severities"] = {name: [word.colour, word.means] for name, word in words.SEVERITIES.items()}
    plain["prices"] = {name: [word.label, word.means] for name, word in words.PRICES.items()}
    module = "analysis" if view.planned is None else "plans"
    return document(view.title, plain, module, view_html(view), site)


def document(title: str, plain: dict[str, Any], module: str, static: str = "", site: SiteFrame = NO_SITE) -> str:
    """A page with the JSON of `plain` and the JavaScript `module` of the folder page/ that draws it. `static`: HTML,
    its names escaped, that is shown without JavaScript. `site`: the navigation of a server."""
    style, script = page_file("page.css"), bundle(module)
    # Inside a script element, JSON must not close it.
    data = compact_json(printable_tree(plain)).replace("<", "\\u003c")
    return Template(page_file("page.html")).substitute(
        policy=_policy(style, script),
        title=html.escape(printable(title)),
        style=style,
        script=script,
        data=data,
        header=site.header,
        crumbs=site.crumbs,
        static=static,
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


def _policy(style: str, script: str) -> str:
    """The content security policy that allows exactly this style and this script, by their SHA-256 digests."""

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    # Images: the tab icon, and charts that are exported as PNG. Nothing else may be fetched.
    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
