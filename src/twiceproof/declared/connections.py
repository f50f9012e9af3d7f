"""Connections: the outside systems of flows in files, by name, from `connections.yaml`. Secrets are references only.

```yaml
accounting:
  live: {http: https://api.accounting.example, bearer: env:ACCOUNTING_TOKEN}
mail:
  live: {smtp: smtp.example.com:587, user: orders, password: env:SMTP_PASSWORD, from: orders@example.com}
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from ..errors import Misuse
from ..secret import Env, SecretFile, env
from .nodes import Document, LintProblem, parse, read_utf8

if TYPE_CHECKING:
    from ..effects.base import Effect

__all__ = ["Connection", "Connections", "StandInProvider", "header_values", "secret_of", "secret_or_text"]


Reference = str
Kind = Literal["http", "smtp", "sql", "webhook", "log", "ssh"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Connection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One side of a connection. Exactly one of the first six fields says what it is."""

    http: str | None = None
    smtp: str | None = None
    sql: Reference | None = None
    webhook: Reference | None = None
    log: bool | None = None
    ssh: str | None = None
    bearer: Reference | None = None
    user: str = ""
    password: Reference | None = None
    headers: dict[str, Reference] = {}
    provider: str | None = None
    sender: str = msgspec.field(default="", name="from")
    tls: Literal["starttls", "tls", "none"] = "starttls"
    to: str = ""  # receiver of notices by mail
    key: Reference | None = None
    known_hosts: Reference | None = None
    imap: str | None = None
    redirect: str = ""  # of a draft side: receives every mail instead of its real recipients

    @property
    def kind(self) -> Kind | None:
        found = [kind for kind in KINDS if getattr(self, kind) is not None]
        return found[0] if len(found) == 1 else None


class _Sides(Struct, frozen=True, forbid_unknown_fields=True):
    live: Connection
    draft: Connection | None = None


class StandInProvider(Protocol):
    """The stand-ins for the steps of a draft."""

    def stands_in(self, spec: Struct) -> bool: ...

    def describer(self, spec: Struct) -> Callable[[Mapping[str, Any]], Effect[Any]]: ...

    def callback(self, name: str) -> Any: ...

    def flow_answer(self, name: str) -> Any: ...


class Connections(Struct, frozen=True):
    """The contents of `connections.yaml`, and its problems."""

    known: dict[str, Connection] = {}  # the live sides
    problems: tuple[LintProblem, ...] = ()
    file: str = "connections.yaml"
    drafts: dict[str, Connection] = {}
    stand_in: StandInProvider | None = None  # of a draft run
    note: str = ""  # about the file, for messages

    @classmethod
    def read(cls, path: Path) -> Connections:
        """Read a file. A missing one has no connections: a flow that uses none needs none."""
        if not path.is_file():
            return cls(file=str(path))
        document = parse(read_utf8(path))
        problems = list(document.problems)
        known: dict[str, Connection] = {}
        drafts: dict[str, Connection] = {}
        for name, data in (document.data if isinstance(document.data, dict) else {}).items():
            made = _connection(name, data, document, problems)
            if made is not None:
                known[name] = made.live
                drafts |= {} if made.draft is None else {name: made.draft}
        return cls(known, tuple(problems), str(path), drafts)

    def stands_in(self, spec: Struct) -> bool:
        """Whether a draft's step is replaced by a stand-in."""
        return self.stand_in is not None and self.stand_in.stands_in(spec)

    def get(self, name: str, *kinds: Kind) -> Connection:
        """Return a connection of one of these kinds. Raises Misuse, which does not tell where the file is: a caller
        over HTTP may see it.
        """
        found, file = self.known.get(name), Path(self.file).name
        if found is None:
            raise Misuse(f"There is no connection {name!r} in {file}{self.note}; add it there.")
        if found.kind not in kinds:
            raise Misuse(f"The connection {name!r} in {file} is {found.kind}, and {' or '.join(kinds)} is needed.")
        return found


def _connection(name: str, data: Any, document: Document, problems: list[LintProblem]) -> _Sides | None:
    place = document.place((name,))
    try:
        made = msgspec.convert(data, _Sides)
    except msgspec.ValidationError as error:
        instead = f"{name}: {{live: {{http: https://api.example.com, bearer: env:NAME}}}}"
        problems.append(LintProblem("connection", place, f"{name}: {error}", instead))
        return None
    wrong = _wrong(made.live) or (None if made.draft is None else _wrong(made.draft))
    if wrong:
        problems.append(LintProblem("connection", place, f"{name}: {wrong[0]}", wrong[1]))
        return None
    return made


def _wrong(made: Connection) -> tuple[str, str] | None:
    """Return what is wrong, and what to write instead. The text is never repeated: it may be a secret."""
    if made.kind is None:
        return f"it is none of {', '.join(KINDS)}, or several", "one of them"
    references = {"bearer": made.bearer, "password": made.password, "key": made.key}
    for field, text in references.items():
        if text is not None and not text.startswith(("env:", "file:")):
            return f"{field} holds a value, which would be in the file for all to read", f"{field}: env:NAME"
    if made.smtp is not None and "@" not in made.sender:
        return "a mail connection needs a sender", "from: orders@example.com"
    return _wrong_address(made)


def _wrong_address(made: Connection) -> tuple[str, str] | None:
    if made.http is not None and not _is_service(made.http):
        return "http is no address of a service, or has a password in it", "http: https://api.example.com"
    if made.sql is not None and _has_password(made.sql):
        return "sql holds a password, which would be in the file for all to read", "sql: env:DATABASE_URL"
    if made.smtp is not None and not _is_server(made.smtp):
        return "smtp is no mail server with its port", "smtp: smtp.example.com:587"
    return None


def _is_service(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in url and parts.port != 0
    except ValueError:  # of a port or an address in brackets
        return False


def _is_server(place: str) -> bool:
    host, colon, port = place.partition(":")
    return bool(host) and (not colon or (port.isdecimal() and 0 < int(port) < 65_536))


def _has_password(url: str) -> bool:
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return True  # it cannot be told, and is not shown


def secret_of(reference: str) -> Env:
    """Return a reference that reads a secret when it is needed: `env:NAME` from the environment, `file:/path` from a
    file.
    """
    kind, _, rest = reference.partition(":")
    if kind == "env":
        return env(rest)
    if kind != "file" or not rest:
        raise Misuse("A secret is given as env:NAME or file:/path; its value must not be in the file.")
    return SecretFile(Path(rest))


def secret_or_text(reference: str) -> str | Env:
    """Return a reference to a secret, or the text itself if it is none: of an address that need not be secret."""
    return secret_of(reference) if reference.startswith(("env:", "file:")) else reference


def header_values(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return headers with their secrets as references, which are read when the request is sent."""
    return {name: secret_or_text(text) for name, text in headers.items()}
