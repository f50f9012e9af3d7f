"""Requests and other effects, as far as the source shows them: to which provider, with which key, for how long."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from msgspec import Struct

from ...effects.http import IDEMPOTENT
from ...effects.providers import Provider, provider_of, providers
from ...effects.repeat import DEFAULT_WINDOW
from ...errors import Misuse
from ...keys.duration import lifetime
from .calls import parts_of
from .source import NOTHING, SourceTree, literal

__all__ = [
    "RequestCall",
    "effect_class",
    "only_described",
    "requests_in",
    "sends_mail",
    "sends_our_key",
    "stated_window",
]


EFFECTS = "twiceproof.effects."
OURS = f"{EFFECTS}http."
_VERB = re.compile(r"(?:^|\.)(get|head|post|put|patch|delete)$")
_CLIENT = re.compile(r"(requests|httpx|httpx2|aiohttp|urllib3)\b")
_MAIL = re.compile(r"(smtplib|aiosmtplib)\.(.*\.)?(sendmail|send_message|send)|twiceproof\.effects\.mail\.send")


class RequestCall(Struct, frozen=True):
    """One call of an HTTP client. `row` is the provider that its URL or its `provider=` names."""

    node: ast.Call
    path: str
    method: str
    row: Provider | None

    @property
    def is_ours(self) -> bool:
        return self.path.startswith(OURS)

    @property
    def names_provider(self) -> bool:
        return self.is_ours and literal(self.node, "provider") is not None


def requests_in(source: SourceTree) -> Iterator[RequestCall]:
    """Requests of our blocks and of known clients, in a function itself."""
    for call in source.calls():
        path = source.path(call.func)
        verb = _VERB.search(path)
        if verb is not None and (path.startswith(OURS) or _CLIENT.match(path)):
            method = verb[1].upper()
            yield RequestCall(call, path, method, _row(source, call, method))


def _row(source: SourceTree, call: ast.Call, method: str) -> Provider | None:
    named = literal(call, "provider")
    if isinstance(named, ast.Constant):
        return providers().get(str(named.value))
    given = call.args[0] if call.args else literal(call, "url")
    return provider_of(_text(source, given), method) if given is not None else None


def _text(source: SourceTree, node: ast.expr) -> str:
    """The beginning of a text, up to where only running the code would show more."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            found = ""
            for part in parts:
                inner = part.value if isinstance(part, ast.FormattedValue) else part
                text = _text(source, inner)
                if not text:
                    break
                found += text
            return found
        case ast.BinOp(left=left, op=ast.Add()):
            return _text(source, left)
        case ast.Name() | ast.Attribute():
            known = source.meaning(node)
            return known if known is not NOTHING and isinstance(known, str) else ""
    return ""


def sends_our_key(source: SourceTree) -> bool:
    """Whether `effect_key` is named in a function, or in what it calls."""
    return any(
        getattr(node, "attr", getattr(node, "id", "")) == "effect_key"
        for part in parts_of(source)
        for node in part.nodes(ast.expr)
    )


def stated_window(call: RequestCall) -> float | None:
    """The window of `repeat="keyed"` or `repeat=keyed(window="2d")` in a call of ours; None: none is stated."""
    given = literal(call.node, "repeat")
    if isinstance(given, ast.Constant):
        return DEFAULT_WINDOW if given.value == "keyed" else None
    if not isinstance(given, ast.Call) or ast.unparse(given.func).rpartition(".")[2] != "keyed":
        return None
    window = literal(given, "window")
    try:
        return DEFAULT_WINDOW if window is None else lifetime(ast.literal_eval(window), name="window")
    except (ValueError, Misuse):
        return None  # only running the code would show it


def sends_mail(source: SourceTree) -> Iterator[tuple[ast.Call, str]]:
    for call in source.calls():
        if _MAIL.fullmatch(path := source.path(call.func)):
            yield call, path


BLOCKS = {
    "etag.change": "safe",  # http.change; with a mark: check
    "sql.find_or_create": "safe",
    "sql.upsert": "safe",
    "sql.insert_once": "safe",
    "files.write": "safe",
    "files.create": "safe",
    "files.append": "check",
    "s3.put": "keyed",
    "dataverse.upsert": "safe",
    "dataverse.update_only": "safe",
    "dataverse.create_only": "check",
    "dataverse.change": "safe",  # with a mark: check
    "table.find_or_create": "check",
    "mail.send": "never",  # with a look, or by a mailbox of drafts: check
}


DRAFTS = (f"{EFFECTS}mail_drafts.graph", f"{EFFECTS}mail_drafts.gmail")


def only_described(source: SourceTree, *, returned: bool) -> Iterator[ast.Call]:
    """Calls of blocks whose effect is dropped: a statement of its own, or what a flow or step itself returns."""
    kinds = (ast.Expr, ast.Return) if returned else (ast.Expr,)
    for node in source.nodes(*kinds):
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call) and _is_block(source, call):
            yield call


def _is_block(source: SourceTree, call: ast.Call) -> bool:
    path = source.path(call.func)
    return path.removeprefix(EFFECTS) in BLOCKS or (path.startswith(OURS) and bool(_VERB.search(path)))


def effect_class(source: SourceTree) -> str:
    """How the effect that a function describes may be repeated; "" where the source does not show it."""
    described = [*_requests_described(source), *_blocks_described(source)]
    return described[0] if len(described) == 1 else ""


def _requests_described(source: SourceTree) -> Iterator[str]:
    return (_class_of(call) for call in requests_in(source) if call.is_ours)


def _blocks_described(source: SourceTree) -> Iterator[str]:
    for call in source.calls():
        kind = BLOCKS.get(source.path(call.func).removeprefix(EFFECTS))
        if kind is not None:
            yield "check" if _is_looked_for(source, call, kind) else kind


def _is_looked_for(source: SourceTree, call: ast.Call, kind: str) -> bool:
    if source.path(call.func).endswith(".change"):
        return literal(call, "mark") is not None
    if kind != "never":
        return False
    via = literal(call, "via")
    by_draft = via is not None and (
        hasattr(source.meaning(via), "find") or (isinstance(via, ast.Call) and source.path(via.func) in DRAFTS)
    )
    return by_draft or literal(call, "look") is not None


def _class_of(call: RequestCall) -> str:
    given = literal(call.node, "repeat")
    if isinstance(given, ast.Constant):
        return str(given.value)
    if given is not None:
        named = ast.unparse(given.func).rpartition(".")[2] if isinstance(given, ast.Call) else ""
        return named if named in ("keyed", "check") else ""
    if call.names_provider and call.row is not None and call.method in call.row.methods and call.row.kind != "never":
        return call.row.kind
    if literal(call.node, "look") is not None:
        return "check"
    return "safe" if call.method in IDEMPOTENT else "never"
