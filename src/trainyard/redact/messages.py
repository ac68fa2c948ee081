"""Messages about files whose names mean a secret: `api_token.toml: line 3: a value is missing`.

The redactor takes the word after such a name and a colon for the secret itself. The names of the files that a command
was given are known, so that messages about them keep their words.
"""

from __future__ import annotations

import os
import re

from trainyard.redact.text_secrets import redact

_FILES: set[str] = set()
"""Paths as given to the command, if the redactor would hide the word after one."""
_FIRST_MARK = 0xE000
"""The first of the private characters that replace paths during the redaction."""
_MOST_FILES = 0x100


def keep_words_after(path: str) -> None:
    """Marks `path` as that of a file: messages keep the words after it. Any other text is redacted as usual."""
    if len(_FILES) < _MOST_FILES and os.path.exists(path) and redact(f"{path}: text") != f"{path}: text":
        _FILES.add(path)


def redact_message(text: str) -> str:
    """`text` with its secrets replaced by `***`, except for the words after the names of known files."""
    marks = {path: chr(_FIRST_MARK + number) for number, path in enumerate(sorted(_FILES, key=len, reverse=True))}
    if not marks or any(mark in text for mark in marks.values()):
        return redact(text)
    for path, mark in marks.items():
        text = re.sub(rf"(?<![\w./\-]){re.escape(path)}(?=: )", mark, text)
    text = redact(text)
    for path, mark in marks.items():
        text = text.replace(mark, path)
    return text
