"""Redaction removes every secret and keeps every other byte."""

from __future__ import annotations

import io
import json
import shlex
import time
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.redaction import (
    ANY,
    BARE,
    COMMANDS,
    NAMES,
    ORDINARY_VALUES,
    TEXTS,
    TOKEN_TEXTS,
    ordinary_commands,
    secrets,
    tokens,
)  # fmt: skip
from trainyard.formats import toml
from trainyard.redact import (
    is_secret,
    redact,
    redact_command,
    redact_json,
    redact_json_lines,
    redact_lines,
    secret_paths,
)
from trainyard.redact.text_secrets import is_suspect
from trainyard.store.redact_run import redact_job


@given(template=st.sampled_from(COMMANDS), secret=secrets(ANY))
def test_secrets_in_commands_are_redacted(template: Callable[[str], list[str]], secret: str) -> None:
    words = template(secret)
    shown = redact_command(words)
    assert len(shown) == len(words)
    assert shown[0] == words[0]
    for encoded in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]):
        assert encoded not in shlex.join(shown)
    assert redact_command(shown) == shown
    assert redact(shlex.join(shown)) == shlex.join(shown)


@given(template=st.sampled_from(TEXTS), secret=secrets(BARE))
def test_secrets_in_text_are_redacted(template: Callable[[str], str], secret: str) -> None:
    text = template(secret)
    assert is_suspect(text)
    shown = redact(text)
    assert secret not in shown
    assert quote(secret, safe="") not in shown
    assert redact(shown) == shown


@given(template=st.sampled_from(TOKEN_TEXTS), token=tokens())
def test_tokens_with_known_prefixes_are_redacted(template: Callable[[str], str], token: str) -> None:
    shown = redact(template(token))
    assert token not in shown
    assert redact(shown) == shown


@given(st.lists(st.sampled_from(["python", "train.py", "--lr", "3", "--api-key", "--token=xyz", "secret"])))
def test_only_secret_values_are_removed_from_commands(command: list[str]) -> None:
    shown = redact_command(command)
    assert len(shown) == len(command)
    assert "--token=xyz" not in shown
    assert all(after == "***" for before, after in zip(command, shown[1:]) if before == "--api-key")
    changed = {word for word, other in zip(command, shown) if word != other}
    assert changed <= {"--token=xyz", *(after for before, after in pairwise(command) if before == "--api-key")}


_DOCUMENTS: list[Callable[[str, str], object]] = [
    lambda name, secret: {name: secret},
    lambda name, secret: {"a": [{name: {"b": [secret, {"c": secret}]}}]},
    lambda name, secret: ["run", f"--{name}", secret, "--lr", "3"],
    lambda name, secret: [f"--{name}={secret}"],
    lambda name, secret: ["sshpass", "-p", secret, "ssh", "host"],
    lambda name, secret: {"env": json.dumps({name: secret})},
]


_INDENT = st.sampled_from([None, 1])


@given(st.sampled_from(_DOCUMENTS), st.sampled_from(NAMES), secrets(ANY), _INDENT)
def test_secrets_in_json_are_redacted(
    template: Callable[[str, str], object], name: str, secret: str, indent: int | None
) -> None:
    document = {"first": 1, "spoiled": template(name, secret), "last": ["kept", 2.50]}
    data = json.dumps(document, indent=indent).encode()
    shown = redact_json(data)
    decoded = json.loads(shown)
    assert json.dumps(secret)[1:-1].encode() not in shown
    assert (decoded["first"], decoded["last"]) == (1, ["kept", 2.5])
    assert redact_json(shown) == shown
    assert b"".join(redact_json_lines(io.BytesIO(data))) == shown


@given(ordinary_commands())
def test_ordinary_arguments_survive(words: list[str]) -> None:
    assert redact_command(words) == words
    assert redact(" ".join(words)) == " ".join(words)
    assert redact_json(json.dumps(words).encode()) == json.dumps(words).encode()


_VALUES = st.none() | st.booleans() | st.integers() | st.sampled_from(ORDINARY_VALUES)
_KEYS = st.sampled_from(["a", "key", "tokens", "pass_by"])


@given(st.recursive(_VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner)), _INDENT)
def test_ordinary_documents_keep_every_byte(document: object, indent: int | None) -> None:
    data = json.dumps(document, indent=indent).encode()
    assert redact_json(data) == data
    assert b"".join(redact_json_lines(io.BytesIO(data))) == data


_PIECES = st.sampled_from([
    "password", "token", "key", "=", ":", "://", "@", "--", "-p", "'", '"', "\\", "\\\"", "%40", "%3D", "%253A", " ",
    "\n", "***", "{", "}", "[", "]", "(", ",", ";", "&", "Bearer ", "Basic ", "authorization", "mysql ", "curl ",
    "-u ", "hf_", "sk-", "eyJ", "abcdefgh1", "x", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "https",
    "proxy:80", "login ", "wandb ",
])  # fmt: skip
_JUMBLES = st.lists(_PIECES, max_size=16).map("".join)


@given(_JUMBLES)
def test_redaction_is_idempotent(text: str) -> None:
    shown = redact(text)
    assert redact(shown) == shown
    lines = list(redact_lines(text.splitlines(keepends=True)))
    assert list(redact_lines(lines)) == lines


@given(st.binary() | _JUMBLES.map(str.encode))
def test_any_bytes_are_redacted_as_damaged_json(data: bytes) -> None:
    assert isinstance(redact_json(data), bytes)
    assert isinstance(b"".join(redact_json_lines(io.BytesIO(data))), bytes)


@given(st.sampled_from(_DOCUMENTS), st.sampled_from(NAMES), secrets(BARE), _INDENT, st.floats(0, 1))
def test_secrets_in_truncated_json_are_redacted(
    template: Callable[[str, str], object], name: str, secret: str, indent: int | None, cut: float
) -> None:
    data = json.dumps({"spoiled": template(name, secret), "last": 1}, indent=indent).encode()
    shown = redact_json(data[: round(cut * len(data))])
    assert secret.encode() not in shown
    assert redact_json(shown) == shown


@pytest.mark.parametrize(
    "piece",
    [
        "a=", "key=", "token=", "a:b,", "u:x@", "://", "https://", "%25", "\\", "'", '"', "[", "-", "+", "eyJ",
        "-eyJ", "sk-", "hf_", "-----BEGIN PRIVATE KEY-----", "bearer ", "basic a ", ",\\", "--x ", 'curl "',
        "curl -u ", '\\"', '{"a":', '"--password",', "password=[", "password='", "password=\\", "a%3D", "mysql -p",
        "\t", "a::b@", "--pass ",
    ],
)  # fmt: skip
def test_redaction_time_is_linear(piece: str) -> None:
    """Quadratic time would be minutes at this length."""
    text = piece * (300_000 // len(piece)) + "@x:1 token=1"
    start = time.process_time()
    redact(text)
    redact_command([text, "--token", text])
    redact_json(b'"' + text.encode() + b'"')
    redact_json(text.encode())
    assert time.process_time() - start < 30


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("WANDB_API_KEY", True), ("--hf-token", True), ("AWS_SECRET_ACCESS_KEY", True), ("--pwd", True),
        ("dbPassword", True), ("TOKEN_2", True), ("auth_tokens", True), ("GITHUB_PAT", True), ("Authorization", True),
        ("wandb-key", True), ("--token-dispatcher", False), ("max_tokens", False), ("tokens", False),
        ("num-passes", False), ("key", False), ("key_dim", False), ("--author", False), ("PWD", False),
        ("OLDPWD", False), ("eos_token", False), ("password_file", False), ("bypass_words", False),
        ("tokenizer", False), ("sort_key", False), ("", False),
    ],
)  # fmt: skip
def test_last_word_of_a_name_marks_a_secret(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


@given(name=st.sampled_from(NAMES), secret=secrets(BARE))
def test_secrets_in_unescaped_trace_names_are_redacted(name: str, secret: str) -> None:
    inner = json.dumps({"first": 1, name: secret})
    data = f'{{\n"traceEvents": [\n{{"name": "{inner}",\n"ts": 1}},\n{{"name": "aten::add", "ts": 2}}\n]}}'.encode()
    shown = b"".join(redact_json_lines(io.BytesIO(data)))
    assert secret.encode() not in shown
    assert shown.count(b"\n") == data.count(b"\n")


_TOML_PIECES = st.sampled_from([
    '"""', "'''", '"', "'", "#", "\n", "\\", "a", "x = 1 #", "y", "=", "--token ", "password=", " ", "[", "]",
    "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "pass = 3\n", 'k = "',
])  # fmt: skip


@given(st.lists(_TOML_PIECES, max_size=14).map("".join))
def test_redacted_job_keeps_other_values(text: str) -> None:
    shown = redact_job(text)
    assert redact_job(shown) == shown
    try:
        document = toml.loads(text)
    except toml.DecodeError:
        return
    assert any(secret_paths(document)) or toml.loads(shown) == document
