"""What every page of the server has: head, header with navigation, and the element for its content."""

from __future__ import annotations

from trainyard import __version__
from trainyard.printable import printable
from trainyard.serve.markup import Html, element, join
from trainyard.serve.static_files import static_url

SECTIONS = (("Runs", "/runs"), ("History", "/history"), ("Compare", "/compare"), ("Plan", "/plan"))
_MOST_TITLE = 200
"""Characters of the title of a browser's tab."""
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cg fill='%232f62d0'%3E"
    "%3Crect x='1' y='7' width='2.5' height='7'/%3E%3Crect x='5' y='2' width='2.5' height='12'/%3E"
    "%3Crect x='9' y='8' width='2.5' height='6'/%3E%3Crect x='13' y='5' width='2.5' height='9'/%3E%3C/g%3E%3C/svg%3E"
)
_BARS = ((0.5, 7, 8), (4.8, 1, 14), (9.1, 8.5, 6.5), (13.4, 4.5, 10.5))
"""(x, y, height) of the bars of the logo."""


def shell(title: str, *content: Html, current: str = "", scripts: tuple[str, ...] = ("serve.js",)) -> Html:
    """A whole page. `current`: the section in `SECTIONS` that it belongs to; `scripts`: names of static files."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{printable(title)[:_MOST_TITLE]} · trainyard"),
        element("link", rel="icon", href=_ICON),
        *(element("link", rel="stylesheet", href=static_url(name)) for name in ("page.css", "serve.css")),
        *(element("script", src=static_url(name), type="module") for name in scripts),
    )
    body = element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#content"),
        element(
            "header",
            element("a", _logo(), "trainyard", class_="brand", href="/"),
            site_links(current),
            element("div", element("button", "Theme", type="button", id="theme", hidden=True), class_="actions"),
        ),
        element("main", *content, element("footer", f"trainyard {__version__}"), id="content", tabindex="-1"),
    )
    return Html("<!doctype html>\n" + element("html", head, body, lang="en"))


def site_links(current: str = "") -> Html:
    """The links to the sections of the site."""
    links = (element("a", name, href=href, aria_current="page" if name == current else None) for name, href in SECTIONS)
    return element("nav", *links, class_="site", aria_label="Site")


def crumbs(trail: tuple[tuple[str, str], ...], actions: tuple[tuple[str, str], ...] = ()) -> Html:
    """The way to a page, as (text, address) from the outermost, and links to other views of it."""
    parts = [element("a", name, href=href) if href else element("span", name) for name, href in trail]
    separated = [join(element("i", "›", aria_hidden="true"), part) if at else part for at, part in enumerate(parts)]
    links = element("span", *(element("a", name, href=href) for name, href in actions), class_="page-actions")
    return element("nav", *separated, links if actions else None, class_="crumbs", aria_label="Position and actions")


def hero(title: str, subtitle: str | Html, *figures: Html) -> Html:
    """The top of a page: its heading, a line below it, and key figures."""
    shown = element("dl", *figures, class_="figures") if figures else None
    return element(
        "div", element("div", element("h1", title), element("p", subtitle), class_="sentence"), shown, class_="hero"
    )


def card(title: str, note: str, *content: Html, id: str | None = None) -> Html:
    """A section with its heading and a note next to it."""
    head = element("div", element("h2", title), element("p", note, class_="note") if note else None, class_="head")
    return element("section", head, *content, class_="card", id=id)


def _logo() -> Html:
    bars = (element("rect", x=x, y=y, width=2.4, height=height, rx=0.6) for x, y, height in _BARS)
    return element(
        "svg", element("g", *bars, fill="currentColor"), viewBox="0 0 16 16", width=17, height=17, aria_hidden="true"
    )
