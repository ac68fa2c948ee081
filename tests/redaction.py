"""Secrets, the places where they are written, and ordinary arguments that a redactor must keep."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from hypothesis import strategies as st

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
BARE = LETTERS + "-_.~!$*+/=#%^?@:"
"""Characters of a value without quotes in a text."""
ANY = BARE + " \t'\"`\\&;,()[]{}<>|äß\u202e"
"""Characters of an argument, which needs no quotes."""
_SPECIAL = re.compile(r"<[a-z_/|]+>\Z|\[[A-Z_]+\]\Z")
NAMES = [
    "password", "db.password", "DB_PASSWORD", "passwd", "pass", "pwd", "PGPASSWORD", "token", "hf-token", "HF_TOKEN",
    "github_token_2", "apiKey", "WANDB_API_KEY", "wandb-key", "AWS_SECRET_ACCESS_KEY", "aws_access_key_id", "secret",
    "client-secret", "credentials", "auth", "privateKey", "TORCH_X_AUTH_X", "logger.api_key", "X-Api-Key", "jwt",
    "SharedAccessKey", "accessToken", "SLACK_TOKEN_PROD", "mysql-pwd", "OPENAI_KEY", "ssh-passphrase", "sig", "GH_PAT",
]  # fmt: skip
PREFIXES = [
    "sk-",
    "sk-proj-",
    "hf_",
    "ghp_",
    "gho_",
    "github_pat_",
    "AKIA",
    "xoxb-",
    "AIza",
    "glpat-",
    "nvapi-",
    "hvs.",
]


def secrets(alphabet: str = ANY) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=8, max_size=40).filter(_is_secret)


def _is_secret(text: str) -> bool:
    """Not one that stands in the place already, nor one of a language model's special tokens."""
    return len(set(text.strip(LETTERS[:26]))) > 2 and not _SPECIAL.match(text) and text.strip() == text


def tokens() -> st.SearchStrategy[str]:
    """Tokens with a known prefix."""
    return st.builds(str.__add__, st.sampled_from(PREFIXES), st.text(LETTERS, min_size=16, max_size=40))


COMMANDS: list[Callable[[str], list[str]]] = [
    *[lambda secret, name=name: ["train.py", f"--{name}", secret, "--lr", "3"] for name in NAMES],
    *[lambda secret, name=name: ["train.py", f"--{name}={secret}", "--lr", "3"] for name in NAMES],
    *[lambda secret, name=name: ["env", f"{name}={secret}", "train.py"] for name in NAMES],
    *[lambda secret, name=name: ["docker", "run", "-e", f"{name}={secret}", "image"] for name in NAMES],
    lambda secret: ["train.py", f"--env=WANDB_API_KEY={secret}"],
    lambda secret: ["train.py", f"++trainer.logger.api_key={secret}"],
    lambda secret: ["sshpass", "-p", secret, "ssh", "-p", "22", "host"],
    lambda secret: ["/usr/bin/sshpass", f"-p{secret}", "ssh", "host"],
    lambda secret: ["mysql", "-u", "me", f"-p{secret}", "db"],
    lambda secret: ["redis-cli", "-h", "host", "-a", secret, "ping"],
    lambda secret: ["curl", "-u", f"me:{secret}", "https://host"],
    lambda secret: ["curl", "-sSfu", f"me:{secret}", "https://host"],
    lambda secret: ["docker", "login", "-u", "me", "-p", secret],
    lambda secret: ["curl", "-H", f"Authorization: Bearer {quote(secret, safe='')}", "https://host"],
    lambda secret: ["train.py", "--config", json.dumps({"wandb": {"api_key": secret}})],
    lambda secret: ["train.py", "--url", f"https://me:{quote(secret, safe='')}@host/path"],
]
"""Command lines with any secret."""

TEXTS: list[Callable[[str], str]] = [
    *[lambda secret, name=name: f"x=1 {name}={secret}" for name in NAMES],
    *[lambda secret, name=name: f"run --{name} {secret} --lr 3" for name in NAMES],
    *[lambda secret, name=name: f"failed with {name}: {secret}" for name in NAMES],
    *[lambda secret, name=name: f"{{'{name}': '{secret}', 'lr': 3}}" for name in NAMES],
    *[lambda secret, name=name: json.dumps({"a": [1, {name: secret}]}) for name in NAMES],
    *[lambda secret, name=name: json.dumps(json.dumps({name: secret})) for name in NAMES],
    *[lambda secret, name=name: f"https://host/path?x=1&{name}={quote(secret, safe='')}&y=2" for name in NAMES],
    *[lambda secret, name=name: quote(f"https://h/?x=1&{name}={quote(secret, safe='')}", safe="") for name in NAMES],
    lambda secret: f"Bearer {secret}",
    lambda secret: f"'Authorization': 'Bearer {secret}'",
    lambda secret: f"Authorization: Basic {base64.b64encode(f'me:{secret}'.encode()).decode()}",
    lambda secret: f"Authorization: token {secret}",
    lambda secret: f"Cookie: theme=dark; session={secret}",
    lambda secret: f"cannot open https://me:{quote(secret, safe='')}@host:443/path?x=1",
    lambda secret: f"https://{quote(secret, safe='')}@host/path",
    lambda secret: quote(f"https://me:{quote(secret, safe='')}@host/path", safe=""),
    lambda secret: f"postgresql://me:{quote(secret, safe='')}@/db?host=/tmp",
    lambda secret: f"http_proxy=me:{quote(secret, safe='')}@proxy:80",
    lambda secret: f"me:{quote(secret, safe='')}@proxy:80",
    lambda secret: f"-----BEGIN RSA PRIVATE KEY-----\n{secret}\n-----END RSA PRIVATE KEY-----\nrest",
    lambda secret: f"sh -c 'sshpass -p {secret} ssh host'",
    lambda secret: f"AccountName=a;AccountKey={secret};EndpointSuffix=core",
]
"""Texts with a secret of letters, digits and `BARE` signs."""

TOKEN_TEXTS: list[Callable[[str], str]] = [
    lambda token: token,
    lambda token: f"401 for {token}.",
    lambda token: f"git clone https://host/{token}/x",
    lambda token: json.dumps(["run", token]),
    lambda token: quote(f"a:{token}", safe=""),
    lambda token: f"line\\n{token}\\n",
]

_OPTIONS = re.findall(
    r"\S+",
    """
    tokenizer tokenizer-path max-tokens token-dispatcher moe-token-dispatcher-type tokens-per-step num-tokens passes
    num-passes forward-pass pass-through key-dim key-value-heads num-key-value-heads num-query-groups kv-channels
    model.dim author author-name authority monkey json-keys text-key sort-key label-key keys-per-step keyframes
    keyboard eos-token pad-token image-token class-token vocab-size sequence-length micro-batch-size lr min-lr
    weight-decay train-iters distributed-backend secretary seed-data-loader token-file password-file auth-type compass
    bypass bypass-words tokenization signal-window design credit-assignment pattern path patience save load optimizer
    pipeline-model-parallel-size tensor-model-parallel-size use-flash-attn recompute-granularity attention-dropout
    bf16 profile-step-start wandb-project wandb-entity hub-model-id spot sasrec assign
    """,
)
ORDINARY_VALUES = [
    "1", "4096", "3e-4", "0.1", "llama", "alltoall", "True", "a.b.c", "data/train", "/data/c4/en", "s3://bucket/folder",
    "gs://bucket/o", "hf://datasets/user/name", "https://host:8080/path?x=1&y=2#z", "ssh://git@github.com/org/repo",
    "git@github.com:org/repo.git", "postgresql://me@host/db", "abfs://data@account.dfs.core.windows.net/x", "a@b.c",
    "me@example.org", "image:tag@sha256:0123abcd", "registry:5000/image", "cuda:0", "localhost:29500", "<eos>", "[PAD]",
    "sk-learn", "scikit-learn==1.5", "hf_transfer", "key", "token", "*.py", "model.layers.0.self_attn.k_proj",
    "2024-01-01T10:30:00", "expandable_segments:True,max_split_size_mb:512", "1,2,3", "{lr}", "(0.9, 0.95)", "-1",
]  # fmt: skip
_ORDINARY_SHORT = [
    ["mkdir", "-p", "dir"], ["python", "-p", "8080"], ["-p", "8080"], ["docker", "run", "-p", "80:80"],
    ["ssh", "-p", "22"], ["-a", "1"], ["-u", "root"], ["python", "-u", "train.py"],
]  # fmt: skip


def ordinary_commands() -> st.SearchStrategy[list[str]]:
    option, value = st.sampled_from(_OPTIONS), st.sampled_from(ORDINARY_VALUES)
    words = (
        st.builds(lambda name, value: [f"--{name}", value], option, value)
        | st.builds(lambda name, value: [f"--{name}={value}"], option, value)
        | st.builds(lambda name, value: [f"{name.replace('-', '_')}={value}"], option, value)
        | st.builds(lambda name, value: [f"{name.replace('-', '_').upper()}={value}"], option, st.just("4096"))
        | st.sampled_from(_ORDINARY_SHORT)
        | value.map(lambda value: [value])
    )  # fmt: skip
    return st.lists(words, max_size=8).map(lambda parts: [word for part in parts for word in part])


def places_of(secret: str, folder: Path) -> list[str]:
    """Every file below `folder` that holds the secret, also packed, escaped or encoded."""
    wanted = {secret.encode(), json.dumps(secret)[1:-1].encode(), quote(secret, safe="").encode()}
    wanted |= {secret.replace(sign, code).encode() for sign, code in (("&", "&amp;"), ("'", "'\"'\"'"))}
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in files if any(text in data for data in _layers(path.read_bytes()) for text in wanted)]


_PACKED = re.compile(rb"[A-Za-z0-9+/]{24,}={0,2}")


def _layers(data: bytes) -> Iterator[bytes]:
    """The bytes of a file, and what is packed in them."""
    yield data
    if data[:2] == b"\x1f\x8b":
        yield from _layers(gzip.decompress(data))
    elif data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield from _layers(archive.read(name))
    elif b"<script" in data:
        for packed in _PACKED.findall(data):
            try:
                yield zlib.decompress(base64.b64decode(packed))
            except (ValueError, zlib.error):
                continue
