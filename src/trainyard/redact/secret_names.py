"""Which names of options, variables and keys mean a secret.

As in English compounds, the last word decides: `hf_token` is a token, `token_dispatcher` a dispatcher and
`password_file` a file. Words that only distinguish several (`API_KEY_2`, `TOKEN_PROD`) are skipped.
"""

from __future__ import annotations

import re
from functools import lru_cache

from trainyard.lazy_pattern import lazy_compile

HIDDEN = "***"

_PARTS = lazy_compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SEPARATORS = lazy_compile(r"[^a-z0-9]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CERTAIN = lazy_compile(
    r"password|passwd|passphrase|passcode|passwort|secret(?!a)|credential|(?:api|access|private|secret|auth)_?key"
    r"|(?:auth|access|api|bearer|refresh|session|hf)_?token(?!i)"
)
"""A name with one of these is a secret, unless its last word is one of `_ABOUT`."""
_ABOUT = _words(
    "file files filename path paths dir directory folder name names length len size count type kind policy ttl "
    "expiry expires prompt store provider manager helper command cmd env var version arn ref field column regex "
    "pattern hint timeout min max strength format encoding algorithm algo alg enabled required rotation mode "
    "backend method url uri endpoint"
)
_HEADS = _words("pwd auth oauth authorization cookie cookies jwt creds cred pw otp totp sig sas")
_NEUTRAL = _words(
    "value val str string b64 base64 raw plain plaintext hex prod production dev staging old new current backup "
    "default primary secondary v x"
)
_FLAGS = _words(
    "no use enable disable require requires with without has is allow skip save show hide print need needs ask prompt"
)
"""First words of switches: `--use-auth-token` takes no value, or a truth value."""
_OF_SECRETS = _words(
    "api secret access private auth oauth encryption encrypt decryption signing sign license licence ssh gpg pgp "
    "rsa account storage master session service subscription deploy client bearer refresh user admin root db "
    "database login wandb openai anthropic hf huggingface hub github gitlab aws azure gcp google comet neptune "
    "mlflow ngc nvidia nvapi clearml swanlab kaggle cohere mistral groq gemini together replicate slack stripe "
    "twilio sendgrid datadog dd sentry pg postgres mysql redis mongo"
)
"""Words before `key`, `keys` or `signature` that make a secret of it."""
_OF_MANY = _words("api auth access bearer refresh secret hf session")
"""Words before `tokens` that make secrets of them; others count text."""
_SIGNED = _words("amz goog hub request webhook hmac url")
"""More words before `signature` that make it a secret."""
_ISSUERS = _words("gh github gitlab azure devops ado")
"""Words before `pat`, a personal access token; others are patterns."""
_OF_TEXT = _words(
    "eos bos pad unk sep cls mask image images video audio special start end stop begin next prev max min num n "
    "per vocab fim prefix suffix middle system assistant think thinking boi eoi tool null blank class "
    "distillation register sink dummy decoder first last new added extra text speech patch time sot eot pooled "
    "draft"
)
"""Words before `token` that make it a unit of text."""
_OF_DATA = _words(
    "sort primary foreign label text image json data group cache column feature target input output batch sample "
    "dict state query value map index partition row hash prompt question answer response chosen rejected message "
    "messages public unique join shard order"
)
"""Words before `KEY` that make it a place in data."""
_OF_WORK = _words(
    "forward backward fwd bwd first second third last one two three multi single num n max min per compiler opt "
    "optimizer optimization fusion graph lowering fx inductor mlir llvm dry low high band epoch training train "
    "test eval validation each every full partial warmup"
)
"""Words before `pass` that make it a round of work."""
_FOLDERS = ("PWD", "OLDPWD")
_NO_SECRET = lazy_compile(r"(?:true|false|yes|no|on|off|none|null)?\Z", re.IGNORECASE)
_SWITCHED = lazy_compile(r"[01]\Z")
_SPECIAL_TOKEN = lazy_compile(r"<[a-z_/|]{1,32}>\Z|\[[A-Z_]{1,16}\]\Z")
_RANDOM = lazy_compile(r"(?=[A-Za-z]{0,99}\d)(?=\d{0,99}[A-Za-z])[A-Za-z0-9]{16}")


@lru_cache(4096)
def is_secret(name: str) -> bool:
    """Whether the value of an option, variable or key of this name is a secret."""
    plain = name.lstrip("-+~")
    if plain in _FOLDERS:
        return False
    words = [word.lower() for word in _PARTS.findall(plain)]  # also of camelCase
    while len(words) > 1 and (words[-1] in _NEUTRAL or words[-1].isdigit()):
        words.pop()
    if not words or words[-1] in _ABOUT:
        return False
    return bool(_CERTAIN.search(_SEPARATORS.sub("_", plain.lower()))) or _is_secret_noun(words[-1], words[:-1], plain)


def _is_secret_noun(head: str, preceding: list[str], name: str) -> bool:
    """Whether the last word `head` of a name means a secret after the words `preceding` it. `name`: the name as it is
    written."""
    if head == "token":
        return _OF_TEXT.isdisjoint(preceding) or not _OF_MANY.isdisjoint(preceding)
    if head == "tokens":
        return not _OF_MANY.isdisjoint(preceding)
    if head in ("key", "keys"):
        in_capitals = head == "key" and bool(preceding) and name.isupper() and _OF_DATA.isdisjoint(preceding)
        return in_capitals or not _OF_SECRETS.isdisjoint(preceding)
    if head == "pass":
        return _OF_WORK.isdisjoint(preceding)
    if head == "signature":
        return not (_OF_SECRETS | _SIGNED).isdisjoint(preceding)
    if head == "pat":
        return not _ISSUERS.isdisjoint(preceding)
    return head in _HEADS


def is_switch(name: str) -> bool:
    """Whether an option of this name is on or off: the word after it is not its value."""
    words = _PARTS.findall(name.lstrip("-+~"))
    return len(words) > 1 and words[0].lower() in _FLAGS


def is_plain(name: str, value: str) -> bool:
    """Whether a value is not a secret despite its name: a truth value, nothing, a special token (`<eos>`)."""
    special = name.lower().endswith("token") and _SPECIAL_TOKEN.match(value)
    return bool(special or _NO_SECRET.match(value) or (is_switch(name) and _SWITCHED.match(value)))


def is_random_key(name: str, text: str, at: int = 0) -> bool:
    """Whether `name` is some kind of key (`--key`, `openai-key`) and the value that begins at `at` looks random."""
    quotes = text[at : at + 1] in ("'", '"')
    return name.lower().endswith("key") and _RANDOM.match(text, at + quotes) is not None
