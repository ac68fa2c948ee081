"""`trainyard serve`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; others need a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="Port; 0: a free one.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the token that readers need [default: TRAINYARD_SERVE_TOKEN].",
)
@click.option(
    "--allow-host",
    "allowed_names",
    multiple=True,
    metavar="NAME",
    help="Also accept this name in the Host header, such as that of a proxy; needs a token. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON once the server listens.")
def command(host: str, port: int, token_file: Path | None, allowed_names: tuple[str, ...], as_json: bool) -> None:
    """Serve the stored runs to browsers: list, reports, comparisons, histories, plans and live runs.

    Only users of this machine can reach the default address; pass a token if you do not trust all of them. Any other
    address needs a token, which browsers ask for and programs send as `Authorization: Bearer TOKEN`. The same data is
    at /api/ as JSON, in the documents that commands print with --json. Nothing can be changed over the network. Ctrl-C
    ends the server.

    Needs `pip install 'trainyard[serve]'`.
    """
    from contextlib import suppress

    from trainyard import units
    from trainyard.cli.support.output import echo, print_json, say
    from trainyard.errors import MissingLibrary

    try:
        from trainyard.serve import server
        from trainyard.serve.served_address import ServedAddress
        from trainyard.serve.served_store import ServedStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "anyio"):
            raise
        raise MissingLibrary(
            "trainyard serve needs Starlette and uvicorn.", "Install them: pip install 'trainyard[serve]'."
        ) from error

    rules = server.access_rules(host, server.read_token(token_file, say), allowed_names)
    with server.listen(host, port) as listening:
        store = ServedStore(None, say)
        runs, root, url = len(store.rows()), store.store.root, server.url_of(listening)
        if as_json:
            print_json(ServedAddress(url=url, store=str(root), runs=runs))
        else:
            echo(f"Serving {units.counted(runs, 'run')} of {root} at {url}")
        if rules.any_address:
            say("Requests to this address are not encrypted: use it in a network that you trust, or behind a proxy.")
        with suppress(KeyboardInterrupt):
            server.serve(listening, store, rules, say)
