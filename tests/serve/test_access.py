"""Who may read: hosts, origins, tokens and sessions, and the headers of every response."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx2")  # of Starlette's test client

from starlette.testclient import TestClient

from tests.refused import refused
from tests.serve.clients import HOST, client_of
from tests.serve.conftest import Filled
from trainyard.errors import BadInput
from trainyard.serve.access import COOKIE, LEAST_TOKEN, host_name, safe_target
from trainyard.serve.server import access_rules, read_token

TOKEN = "a-token-of-32-characters-for-test"  # noqa: S105
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def guarded(filled: Filled) -> Iterator[TestClient]:
    """A server on all addresses, which needs a token."""
    with client_of(filled.root, TOKEN, "0.0.0.0") as client:  # noqa: S104
        yield client


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8765", "127.0.0.1@evil.example",
     "[::1].evil", "10.0.0.1", "", ".", "a b", "127.0.0.1:port"],
)  # fmt: skip
def test_other_names_than_those_of_this_machine_are_refused(client: TestClient, host: str) -> None:
    for target in ("/runs", "/api/runs", "/static/page.css"):
        assert client.get(target, headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9000", "[::1]:8765", "localhost."])
def test_names_of_this_machine_are_accepted_with_any_port(client: TestClient, host: str) -> None:
    assert client.get("/runs", headers={"host": host}).status_code == 200


def test_two_host_headers_are_refused(client: TestClient) -> None:
    assert client.get("/runs", headers=[("host", HOST), ("host", "evil.example")]).status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", f"http://{HOST}.evil", "http://127.0.0.1:1", ""])
def test_requests_of_other_sites_are_refused(client: TestClient, origin: str) -> None:
    for method in ("GET", "POST"):
        assert client.request(method, "/login", headers={"origin": origin}).status_code == 403
    assert client.get("/runs", headers={"origin": f"http://{HOST}"}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_link_here_but_fetch_nothing(client: TestClient, site: str) -> None:
    assert client.get("/runs", headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}).status_code == 403
    for dest, status in (("document", 200), ("iframe", 403), ("frame", 403), ("object", 403)):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": dest}
        assert client.get("/runs", headers=headers).status_code == status
    assert client.get("/runs", headers={"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong-token-wrong-token-wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": "Bearer \u00e9"},
        {"cookie": f"{COOKIE}={TOKEN}"},
        {"cookie": f"{COOKIE}={int(time.time()) + 100}.{'0' * 64}"},
    ],
)
def test_without_the_token_nothing_is_shown(guarded: TestClient, headers: dict[str, str]) -> None:
    encoded = {name: value.encode("utf-8") for name, value in headers.items()}
    answer = guarded.get("/api/runs", headers=encoded)
    assert (answer.status_code, answer.json()["code"]) == (401, "bad-input")
    assert answer.headers["www-authenticate"] == "Bearer"
    answer = guarded.get("/runs?job=a%26b", headers=encoded)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fruns%3Fjob%3Da%2526b")


def test_the_token_is_accepted_as_a_header_and_as_a_session(guarded: TestClient, filled: Filled) -> None:
    target = f"/runs/{filled.ids['before']}"
    assert guarded.get("/api/runs", headers=BEARER).status_code == 200
    refusal = guarded.post("/login", data={"token": "wrong", "next": target})
    assert (refusal.status_code, "set-cookie" in refusal.headers) == (401, False)
    answer = guarded.post("/login", data={"token": TOKEN, "next": target})
    assert (answer.status_code, answer.headers["location"]) == (303, target)
    cookie = answer.headers["set-cookie"]
    assert all(part in cookie.lower() for part in ("httponly", "samesite=strict", "path=/"))
    assert TOKEN not in cookie
    assert guarded.get(target).status_code == 200
    guarded.cookies.clear()
    assert guarded.get(target).status_code == 303


def test_a_session_ends_and_belongs_to_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, others = access_rules("0.0.0.0", TOKEN), access_rules("0.0.0.0", TOKEN[::-1])  # noqa: S104
    session = rules.new_session()
    assert rules.accepts_session(session)
    assert not others.accepts_session(session)
    expires, _, signature = session.partition(".")
    assert not rules.accepts_session(f"{int(expires) + 1}.{signature}")
    monkeypatch.setattr(time, "time", lambda: float(expires) + 1)
    assert not rules.accepts_session(session)


def test_another_address_needs_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):  # noqa: S104
        with refused(BadInput, host):
            access_rules(host, "")
        assert access_rules(host, TOKEN).token == TOKEN
    assert access_rules("127.0.0.2", "").token == ""


@pytest.mark.parametrize("name", ["", " ", ".", "http://runs.example.org", "a b", "runs.example.org/", "[", "a:b:c"])
def test_a_malformed_name_is_not_allowed(name: str) -> None:
    with pytest.raises(BadInput):
        access_rules("127.0.0.1", TOKEN, [name])


def test_allowed_names_need_a_token_and_are_normalized() -> None:
    with refused(BadInput, "runs.example.org"):
        access_rules("127.0.0.1", "", ["runs.example.org"])
    rules = access_rules("127.0.0.1", TOKEN, ["Runs.Example.org.", "other.example:8080", "2001:db8::1"])
    for host in ("runs.example.org:443", "other.example", "[2001:db8::1]:80", "localhost"):
        assert rules.accepts_host(host)
    for host in ("", ".", "example.org", "192.0.2.1"):
        assert not rules.accepts_host(host)


def test_no_redirection_repeats_the_host_of_a_request(client: TestClient) -> None:
    assert client.get("/runs/").status_code == 404


def test_the_cookie_is_secure_behind_a_proxy_with_tls(guarded: TestClient) -> None:
    for scheme, is_secure in (("https", True), ("http", False)):
        answer = guarded.post("/login", data={"token": TOKEN}, headers={"x-forwarded-proto": scheme})
        assert ("secure" in answer.headers["set-cookie"].lower().split("; ")) == is_secure
    guarded.cookies.clear()


def test_a_long_address_is_opened_after_the_token_or_forgotten(guarded: TestClient) -> None:
    for target, expected in ((f"/runs?q={'a' * 190}&job={'b' * 190}", True), ("/runs?q=" + "%26" * 1300, False)):
        login = guarded.get(target).headers["location"]
        answer = guarded.get(login)
        assert answer.status_code == 200
        assert (f'value="{target.replace("&", "&amp;")}"' in answer.text) == expected


def test_a_form_with_too_many_fields_is_refused(guarded: TestClient) -> None:
    body = "&".join(f"a{number}=1" for number in range(9))
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert guarded.post("/login", content=body, headers=headers).status_code == 400


def test_any_address_is_accepted_where_a_token_is_needed(guarded: TestClient) -> None:
    """A name can be made to stand for another address, an address cannot."""
    assert guarded.get("/api/runs", headers={**BEARER, "host": "192.0.2.7:8765"}).status_code == 200
    assert guarded.get("/api/runs", headers={**BEARER, "host": "evil.example"}).status_code == 403


def test_a_weak_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    for text in ("", "short", "a" * (LEAST_TOKEN - 1), "with spaces inside it", "t\u00f6ken-token-token-token"):
        file.write_text(text, "utf-8")
        with pytest.raises(BadInput):
            read_token(file, print)
    file.write_text(f"  {TOKEN}\n", "utf-8")
    assert read_token(file, print) == TOKEN
    monkeypatch.setenv("TRAINYARD_SERVE_TOKEN", TOKEN)
    assert read_token(None, print) == TOKEN
    monkeypatch.delenv("TRAINYARD_SERVE_TOKEN")
    assert read_token(None, print) == ""


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)])
def test_a_token_that_other_users_can_read_is_reported(tmp_path: Path, mode: int, warnings: int) -> None:
    file, messages = tmp_path / "token", list[str]()
    file.write_text(TOKEN)
    file.chmod(mode)
    assert read_token(file, messages.append) == TOKEN
    assert len(messages) == warnings


@pytest.mark.parametrize(
    "target", ["/runs", "/static/page.css", "/nothing", "/api/nothing", "/api/runs", "/runs?page=x", "/" + "a" * 5000]
)
def test_every_response_has_the_headers(client: TestClient, target: str) -> None:
    headers = client.get(target).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"]


@given(st.text(max_size=40) | st.sampled_from(["//evil.example", "/\\evil.example", "https://evil.example", "/a\n"]))
def test_a_browser_is_sent_to_this_server_only(target: str) -> None:
    result = safe_target(target)
    assert result.startswith("/")
    assert not result.startswith(("//", "/\\"))
    assert result.isprintable()
    assert result in (target, "/")


@given(st.text(max_size=30))
def test_a_host_name_is_that_of_the_header(host: str) -> None:
    name = host_name(host)
    assert name == "" or name in host.lower()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(client: TestClient, filled: Filled, method: str) -> None:
    for target in ("/runs", f"/runs/{filled.ids['before']}", f"/api/runs/{filled.ids['before']}", "/plan"):
        assert client.request(method, target).status_code == 405
