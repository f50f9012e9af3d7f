"""The effects of acting steps (http, sql, mail, notify), described from their fields and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from ..effects import http, mail
from ..effects.base import Absent, Effect, Happened, Look, Unknown, look_of
from ..effects.http_answers import unanswered_look
from ..effects.http_request import answer_of
from ..effects.repeat import Declared, declare, keyed
from ..errors import Misuse, NotDone, OutcomeUnknown
from ..flows.engine.step_errors import BrokenFlowText
from ..flows.step import called_with
from ..keys.duration import seconds
from .connections import Connection, Connections, header_values, secret_of, secret_or_text
from .expression import compiled, to_plain
from .model import ActingSpec, HttpSpec, MailSpec, NotifySpec, ProbeSpec, RowSpec, SqlLookSpec, SqlSpec
from .names import imported, read_request
from .notices import Describe, Scope, asking, bytes_of, redirected, refuse_lines, refuse_odd_mail, server_of
from .sql_statement import StatementEffect, look_by_query, read_statement
from .template import quoted, read_text, read_value

__all__ = ["DeclaredEffect", "declared_repeat", "describer", "read_once", "redacting"]


DEFAULT_HEADER = "Idempotency-Key"
TIMEOUT = 30.0


class DeclaredEffect(Struct, frozen=True, eq=False):
    """An effect of a step, with the file's declarations: how it may be repeated, how to look for it, and which part of
    its answer is the step's result.
    """

    inner: Effect[Any]
    own_repeat: Declared | None = None
    probe: Callable[[str], Look] | None = None
    read: Callable[[Any], Any] = to_plain
    hide: Callable[[Any], Any] | None = None  # makes plain data without the fields that must not be recorded
    result_type: Any = Any

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def repeat(self) -> Declared:
        if self.own_repeat is None:
            return self.inner.repeat
        return msgspec.structs.replace(self.own_repeat, probe=self.look) if self.probe else self.own_repeat

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()

    def perform(self, effect_key: str) -> Any:
        return self._hidden(self.read(self.inner.perform(effect_key)))

    def _hidden(self, result: Any) -> Any:
        return result if self.hide is None else self.hide(result)

    def look(self, effect_key: str) -> Look:
        if self.probe is None:
            return self.inner.look(effect_key)
        try:
            found = self.probe(effect_key)
            return Happened(self._hidden(found.receipt)) if isinstance(found, Happened) else found
        except Exception as error:  # noqa: BLE001 - a look that fails has found out nothing
            return Unknown(f"the look failed with {type(error).__name__}: {error}"[:300], failed=True)

    def joined(self, store: Any) -> Any:
        """Return the work for one transaction, if the row is in the ledger's own database."""
        joined = getattr(self.inner, "joined", None)
        return None if joined is None or self.own_repeat is not None or self.hide is not None else joined(store)


def describer(spec: ActingSpec, connections: Connections) -> Describe:
    """Return the function that describes a step's effect from its arguments."""
    if connections.stand_in is not None and connections.stands_in(spec):
        return connections.stand_in.describer(spec)
    if isinstance(spec, HttpSpec):
        return _http(spec, connections)
    if isinstance(spec, SqlSpec):
        return _sql(spec, connections)
    if isinstance(spec, MailSpec):
        return _mail(spec, connections)
    if isinstance(spec, NotifySpec):
        return _notify(spec, connections)
    raise Misuse(f"{type(spec).__name__} describes no effect.")


# -- http ----------------------------------------------------------------------------------------


def _http(spec: HttpSpec, connections: Connections) -> Describe:
    method, target, path = read_request(spec.http)
    request = _Request(method, connections.get(target, "http"), path, spec.query, spec.headers)
    body = {"json": spec.json, "form": spec.form, "content": spec.text}
    given = {name: read_value(tree) for name, tree in body.items() if tree is not UNSET and tree is not None}
    limit = TIMEOUT if spec.timeout is None else seconds(spec.timeout, name="timeout")

    def describe(scope: Scope) -> Effect[Any]:
        scope = {**scope, "effect_key": http.KEY}
        parts = {name: formula.evaluate(scope) for name, formula in given.items()}
        options: dict[str, Any] = {**request.options(scope), **parts, "keep": "response", "timeout": limit}
        options["final"] = spec.final
        if _header(spec):
            options["headers"] = {**options["headers"], _header(spec): http.KEY}
        made = getattr(http, method.lower())(request.url(scope), **options)
        own, probe = declared_repeat(spec, connections, scope, limit)
        return DeclaredEffect(made, own, probe, lambda answer: _result(spec, answer, scope), redacting(spec))

    return describe


class _Request(Struct, frozen=True):
    """A request to a connection, with its fields filled in from a scope."""

    method: str
    to: Connection
    path: str
    query: dict[str, Any] = {}
    headers: dict[str, Any] = {}

    def url(self, scope: Scope) -> str:
        # The effect key's placeholder has braces, which must not be encoded: it is replaced when it is sent.
        text = read_text(self.path).render(scope, lambda text: text if text == http.KEY else quoted(text))
        if any(part in (".", "..") for part in text.partition("?")[0].split("/")):  # a server reads it as another path
            raise BrokenFlowText(f"the path {self.path} would be {text}: a part of it is only dots.", final=True)
        return f"{str(self.to.http).rstrip('/')}{text}"

    def options(self, scope: Scope) -> dict[str, Any]:
        headers = {**header_values(self.to.headers), **read_value(self.headers).evaluate(scope)}
        made: dict[str, Any] = {"headers": headers, "params": read_value(self.query).evaluate(scope) or None}
        if self.to.provider is not None:
            made["provider"] = self.to.provider
        auth = _auth(self.to)
        return made if auth is None else {**made, "auth": auth}


def _auth(to: Connection) -> Any:
    if to.bearer is not None:
        return secret_of(to.bearer)
    return (to.user, secret_of(to.password)) if to.password is not None else None


def redacting(spec: ActingSpec) -> Callable[[Any], Any] | None:
    """Return the function that makes plain data of a result, without the fields that must not be recorded. None: all
    may be recorded.
    """
    if not spec.redact:
        return None
    paths = [path.split(".") for path in spec.redact]

    def hide(result: Any) -> Any:
        plain = to_plain(result)
        for path in paths:
            plain = _without(plain, path)
        return plain

    return hide


def _without(value: Any, path: list[str]) -> Any:
    if isinstance(value, list):
        return [_without(item, path) for item in value]
    if not isinstance(value, dict) or path[0] not in value:
        return value
    rest = {name: inner for name, inner in value.items() if name != path[0]}
    return rest if len(path) == 1 else {**rest, path[0]: _without(value[path[0]], path[1:])}


def _result(spec: HttpSpec, answer: http.HttpAnswer, scope: Scope) -> Any:
    """Return the step's result from a 2xx answer. After an unexpected answer the outcome is unknown."""
    seen = {**scope, "status": answer.status, "headers": dict(answer.headers), "body": answer_of(answer)}
    if spec.expect is not None and compiled(spec.expect).evaluate(seen) is not True:
        raise OutcomeUnknown(f"the answer ({answer.status}) is not as expected: {spec.expect}")
    try:
        return compiled(spec.result).evaluate(seen)
    except NotDone as error:  # it was done: only its result cannot be read
        raise OutcomeUnknown(f"the result cannot be read from the answer: {error}") from error


def read_once(request: str, connections: Connections) -> Callable[[Scope], dict[str, Any]]:
    """Return a function that sends a GET and returns `status`, `headers` and `body`, for polls. It raises NotDone for
    any other answer than 2xx.
    """
    method, target, path = read_request(request)
    asked = _Request(method, connections.get(target, "http"), path)

    def read(scope: Scope) -> dict[str, Any]:
        effect = http.get(asked.url(scope), keep="response", **asked.options(scope))
        answer = effect.call.send("")
        if not 200 <= answer.status < 300:
            raise NotDone(f"{request} was answered with {answer.status}.")
        return {**scope, "status": answer.status, "headers": dict(answer.headers), "body": answer_of(answer)}

    return read


# -- how a step may be repeated ------------------------------------------------------------------


def _header(spec: ActingSpec) -> str:
    if spec.repeat == "keyed":
        return DEFAULT_HEADER
    own = spec.repeat.keyed if isinstance(spec.repeat, ProbeSpec) else UNSET
    return own if isinstance(own, str) else ""


def declared_repeat(
    spec: ActingSpec, connections: Connections, scope: Scope, limit: float
) -> tuple[Declared | None, Callable[[str], Look] | None]:
    """Return the file's declaration and its probe. None: the effect's own declaration is used."""
    repeat = spec.repeat
    if repeat is None or isinstance(repeat, str):
        return (None if repeat is None else declare(repeat)), None
    if not isinstance(repeat.check, msgspec.UnsetType):
        probe = _probe(repeat, connections, scope, limit or TIMEOUT)
        settling = limit + seconds(repeat.settle, name="settle", positive=False)
        return Declared("check", probe, settling), probe
    return keyed(window=repeat.window), None


def _probe(repeat: ProbeSpec, connections: Connections, scope: Scope, limit: float) -> Callable[[str], Look]:
    """Return the look. A request has as much time as its step."""
    if isinstance(repeat.check, SqlLookSpec):
        return _query_probe(repeat.check, connections, scope)
    text = str(repeat.check)
    if not text.startswith("GET "):
        function = imported(text)
        return lambda effect_key: look_of(function(**called_with(function, {**scope, "effect_key": effect_key})))
    _, target, path = read_request(text)
    request = _Request("GET", connections.get(target, "http"), path)
    found = "body" if repeat.found is UNSET else str(repeat.found)

    def look(effect_key: str) -> Look:
        known = {**scope, "effect_key": effect_key}
        effect = http.get(request.url(known), keep="response", timeout=limit, **request.options(known))
        return _looked(effect.call.send(effect_key), found, known)

    return look


def _query_probe(look: SqlLookSpec, connections: Connections, scope: Scope) -> Callable[[str], Look]:
    database = secret_or_text(str(connections.get(look.sql, "sql").sql))
    statement, given = read_statement(look.query), read_value(look.given)
    return lambda key: look_by_query(database, statement, given.evaluate({**scope, "effect_key": key}))


def _looked(answer: http.HttpAnswer, found: str, known: Scope) -> Look:
    """Interpret the answer of a look: 404 and null are Absent, a value is the result, everything else is Unknown."""
    if answer.status == 404:
        return Absent()
    if not 200 <= answer.status < 300:
        return unanswered_look(answer.status)
    seen = {**known, "status": answer.status, "headers": dict(answer.headers), "body": answer_of(answer)}
    value = compiled(found).evaluate(seen)
    return Absent() if value is None else Happened(value)


# -- sql, mail and notify ------------------------------------------------------------------------


def _sql(spec: SqlSpec, connections: Connections) -> Describe:
    from ..effects import sql

    database = secret_or_text(str(connections.get(spec.sql, "sql").sql))
    if spec.query is not None or spec.run is not None:
        return _statement(spec, database, connections)
    verbs = {"upsert": spec.upsert, "insert_once": spec.insert_once, "find_or_create": spec.find_or_create}
    ((verb, asked),) = ((verb, asked) for verb, asked in verbs.items() if asked is not None)
    own = declared_repeat(spec, connections, {}, TIMEOUT)[0]

    def describe(scope: Scope) -> Effect[Any]:
        key, values = _columns(asked, scope)
        made = getattr(sql, verb)(database, asked.table, key=key, values=values)
        hide = redacting(spec)
        return DeclaredEffect(made, own, None, lambda row: row, hide, made.result_type if hide is None else Any)

    return describe


def _statement(spec: SqlSpec, database: Any, connections: Connections) -> Describe:
    statement, given = read_statement(str(spec.query or spec.run)), read_value(spec.given)

    def describe(scope: Scope) -> Effect[Any]:
        own, probe = declared_repeat(spec, connections, scope, TIMEOUT)
        values = given.evaluate(scope)
        made = StatementEffect(database, spec.sql, statement, values, spec.query is not None)
        return DeclaredEffect(made, own, probe, to_plain, redacting(spec))

    return describe


def _columns(asked: RowSpec, scope: Scope) -> tuple[dict[str, Any], dict[str, Any]]:
    row = read_value(asked.row).evaluate(scope)
    return {name: row[name] for name in asked.by}, {name: row[name] for name in row if name not in asked.by}


def _mail(spec: MailSpec, connections: Connections) -> Describe:
    to = connections.get(spec.mail, "smtp")
    server = server_of(to)
    fields = {name: read_value(getattr(spec, name)) for name in ("to", "cc", "subject", "text", "html")}
    attached = [(read_text(file.name), file.media, read_value(file.content)) for file in spec.attach]
    limit = TIMEOUT if spec.timeout is None else seconds(spec.timeout, name="timeout")

    def describe(scope: Scope) -> Effect[Any]:
        made = {name: formula.evaluate(scope) for name, formula in fields.items()}
        refuse_odd_mail(spec, made)
        message = mail.message(sender=to.sender, **redirected(to, made))
        for name, media, content in attached:
            kind, _, subtype = media.partition("/")
            file = name.render(scope)
            refuse_lines("attach", file)
            message.add_attachment(bytes_of(content.evaluate(scope)), maintype=kind, subtype=subtype, filename=file)
        own, probe = declared_repeat(spec, connections, scope, limit)
        return DeclaredEffect(mail.send(message, via=server), own, probe)

    return describe


def _notify(spec: NotifySpec, connections: Connections) -> Describe:
    own = declared_repeat(spec, connections, {}, TIMEOUT)[0]
    notice = asking(spec, connections)
    return lambda scope: DeclaredEffect(notice(scope), own)
