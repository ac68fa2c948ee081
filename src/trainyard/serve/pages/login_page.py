"""The page that asks for the token."""

from __future__ import annotations

from trainyard.serve.markup import Html, element
from trainyard.serve.pages.shell import hero, shell


def login_page(target: str, is_refused: bool) -> Html:
    """A form for the token. `target`: where the browser is sent after it; `is_refused`: the last token was wrong."""
    form = element(
        "form",
        element("p", "This is not the token of this server.", class_="worse", role="alert") if is_refused else None,
        element(
            "label",
            element("span", "Token"),
            element(
                "input", type="password", name="token", autocomplete="current-password", required=True, autofocus=True
            ),
        ),
        element("input", type="hidden", name="next", value=target),
        element("button", "Open", type="submit", class_="primary"),
        method="post",
        action="/login",
        class_="fields",
    )
    note = "Whoever started the server has it: it is in the file of --token-file, or in TRAINYARD_SERVE_TOKEN."
    return shell("Token", hero("This server needs a token", note), element("section", form, class_="card"))
