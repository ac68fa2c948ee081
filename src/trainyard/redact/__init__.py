"""Hides secrets in everything that is stored, shown or sent: one redactor for every kind of text.

The name of an option or variable, the host of a URL and the kind of a token stay readable; the secret becomes `***`.
Redacting twice changes nothing, and takes time linear in the length of the text.

These are secrets:

- the value of an option, assignment, JSON key or header whose name means a secret (`secret_names.py`)
- the login of a URL or proxy (`logins.py`), `Bearer ...`, `Basic ...`, private keys, and tokens with a known prefix
  (`text_secrets.py`)
- the password options of some clients: `sshpass -p`, `mysql -p`, `curl -u`, ... (`clients.py`)

A secret without a name, a prefix or such a client is not recognised: nothing distinguishes it from other text.
"""

from trainyard.redact.command_line import redact_command
from trainyard.redact.documents import redact_json, redact_json_lines, secret_paths
from trainyard.redact.messages import keep_words_after, redact_message
from trainyard.redact.secret_names import HIDDEN, is_secret
from trainyard.redact.text_secrets import redact, redact_lines

__all__ = [
    "HIDDEN", "is_secret", "keep_words_after", "redact", "redact_command", "redact_json", "redact_json_lines",
    "redact_lines", "redact_message", "secret_paths",
]  # fmt: skip
