"""Programs that take a password in a short option (`sshpass -p`) or as a bare word (`wandb login KEY`).

Everywhere else `-p` is a port, a path or a prefix, and stays.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from trainyard.lazy_pattern import lazy_compile


class Client(NamedTuple):
    """`option`: matches an option that takes a secret, with the value in group `value` if it is in the same word.

    `spaced`: the value may also be the next word. `after`: the secret begins after this character of the value.
    `command`: the subcommand that must come first; with `bare`, each word after it is a secret. `wraps`: the first word
    that is not an option is the program it runs.
    """

    option: re.Pattern[str]
    spaced: bool = True
    after: str = ""
    command: str = ""
    bare: bool = False
    wraps: bool = False


def _option(*names: str) -> re.Pattern[str]:
    """A pattern of a word that is one of the options `names` (patterns), with the value in it, which may be empty."""
    return lazy_compile(rf"(?:{'|'.join(names)})(?P<value>.*)\Z", re.DOTALL)


_ATTACHED = Client(_option("-p"), spaced=False)
_LOGIN = Client(_option("-p"), command="login")
_TABLE = {
    "sshpass": Client(_option("-p"), wraps=True),
    "mysql mysqldump mysqladmin mysqlimport mysqlcheck mysqlshow mysqlsh mysqlslap": _ATTACHED,
    "mariadb mariadb-dump mariadb-admin mariadb-import 7z 7za 7zz rar unrar": _ATTACHED,
    "redis-cli valkey-cli keydb-cli": Client(_option("-a", "--pass=?")),
    "mongo mongosh mongodump mongorestore mongoimport mongoexport cqlsh ncftp rabbitmqadmin": Client(_option("-p")),
    "sqlcmd bcp isql mosquitto_pub mosquitto_sub unzip zip ipmitool": Client(_option("-P")),
    "ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldappasswd": Client(_option("-w")),
    "plink pscp psftp putty": Client(_option("-pw")),
    "curl": Client(_option("-[sSfLkvigNGIjqO#0-6]*[uU]", "--user=?", "--proxy-user=?"), after=":"),
    "http https xh httpie": Client(_option("-a", "--auth=?"), after=":"),
    "smbclient rpcclient": Client(_option("-U", "--user=?"), after="%"),
    "lftp": Client(_option("-u", "--user=?"), after=","),
    "docker podman nerdctl buildah skopeo helm oras crane regctl oc cf az": _LOGIN,
    "wandb": Client(_option("--key=?"), command="login", bare=True),
}
_CLIENTS = {name: client for names, client in _TABLE.items() for name in names.split()}
NAMES = tuple(_CLIENTS)


class ClientOptions:
    """Finds the secrets of known clients in the words of a command line, fed one at a time."""

    def __init__(self) -> None:
        """Begin a command line: no client is named yet."""
        self._client: Client | None = None
        self._is_ready = False
        """Whether the client's subcommand was named, or it needs none: options may take a secret."""
        self._is_value_next = False
        """Whether the next word is the value of an option that takes a secret."""

    @property
    def active(self) -> bool:
        """Whether a client was named."""
        return self._client is not None

    def secret_from(self, word: str) -> int:
        """Index in `word`, the next word of the command line, at which a secret of the current client begins; -1 if
        there is none. Advances the state: the current client, and whether its next word is a secret."""
        client, is_value, self._is_value_next = self._client, self._is_value_next, False
        if client and is_value:
            return self._find_secret(word, 0)
        if client and self._is_ready and (match := client.option.match(word)):
            if not match["value"]:
                self._is_value_next = client.spaced
                return -1
            return self._find_secret(word, match.start("value"))
        if word.startswith("-"):
            return -1
        name = word.rsplit("/", 1)[-1]
        if name in _CLIENTS:
            self._client = _CLIENTS[name]
            self._is_ready = not self._client.command
        elif client and word == client.command:
            self._is_ready = True
        elif client and client.bare and self._is_ready and "://" not in word:
            return 0
        elif client and (client.wraps or word in ("&&", "||", ";", "|")):
            self._client = None
        return -1

    def _find_secret(self, word: str, value_index: int) -> int:
        """Index in `word` at which the secret in the value at `value_index` begins; -1 if the separator after which it
        begins (`Client.after`) is missing."""
        after = self._client.after if self._client else ""
        if not after:
            return value_index
        separator = word.find(after, value_index)
        return separator + 1 if 0 <= separator < len(word) - 1 else -1
