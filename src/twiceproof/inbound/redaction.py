"""Redaction before anything is stored: declared fields, all headers but a known list, and URL queries.

Pure functions. Missing fields are ignored; a body that cannot be parsed is not stored.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import structs

from ..errors import Misuse
from .source import Envelope

__all__ = ["REDACTED", "kept_headers", "kept_url", "read_paths", "redact", "redact_body", "redact_envelope"]


REDACTED = "[redacted]"
LONGEST_HEADER = 512
FORM = "application/x-www-form-urlencoded"

KEPT = frozenset(
    {
        "content-type",
        "content-length",
        "content-encoding",
        "date",
        "user-agent",
        "traceparent",
        "x-request-id",
        "webhook-id",
        "webhook-timestamp",
        "svix-id",
        "svix-timestamp",
        "x-github-event",
        "x-github-delivery",
        "x-github-hook-id",
        "x-github-hook-installation-target-type",
        "x-shopify-topic",
        "x-shopify-webhook-id",
        "x-shopify-event-id",
        "x-shopify-triggered-at",
        "x-shopify-shop-domain",
        "x-shopify-api-version",
        "x-slack-request-timestamp",
        "x-slack-retry-num",
        "x-slack-retry-reason",
        "ce-id",
        "ce-type",
        "ce-source",
        "ce-specversion",
        "ce-time",
        "ce-subject",
        "ce-datacontenttype",
        "aeg-event-type",
        "aeg-delivery-count",
        "aeg-data-version",
        "aeg-metadata-version",
        "aeg-subscription-name",
        "x-ms-dynamics-entity-name",
        "x-ms-dynamics-request-name",
        "x-ms-dynamics-msg-size-exceeded",
        "square-environment",
        "paypal-transmission-id",
        "paypal-transmission-time",
    }
)
# Headers with these words in their name are never kept, even if requested.
SECRET_WORDS = ("auth", "cookie", "signature", "secret", "token", "password", "api-key", "apikey", "-sig", "hmac")

_Tree = dict[str, Any]  # {"card": {"number": {}}}: an empty branch is redacted completely


def redact(value: Any, paths: Collection[str]) -> Any:
    """Return a copy with the fields at these paths ("card.number") redacted, also in every item of a list."""
    return _redacted(value, read_paths(paths)) if paths else value


def read_paths(paths: Collection[str]) -> _Tree:
    """Parse field paths. Raise Misuse for an invalid one, at declaration time."""
    if isinstance(paths, str):  # redact="card" would redact the fields c, a, r and d
        raise Misuse(f'redact={paths!r} is a string, not a list of fields; write redact=("{paths}",).')
    return _tree_of(tuple(paths))


@functools.lru_cache(maxsize=256)
def _tree_of(paths: tuple[str, ...]) -> _Tree:
    tree: _Tree = {}
    for path in sorted(paths, key=lambda path: str(path).count("."), reverse=True):
        names = path.split(".") if isinstance(path, str) else [""]
        if not all(names):
            raise Misuse(f'redact has {path!r}, which is not a field path; write it like "card.number".')
        branch = tree
        for name in names[:-1]:
            branch = branch.setdefault(name, {})
        branch[names[-1]] = {}  # shorter paths come last, and redact everything below them
    return tree


def _redacted(value: Any, tree: _Tree) -> Any:
    if isinstance(value, Mapping):
        return {name: _field(item, _branch(tree, str(name))) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, tree) for item in value]
    return value


def _branch(tree: _Tree, name: str) -> _Tree | None:
    """Return the paths below this name. Flat bodies and OData annotations write a whole path as one name."""
    known: _Tree | None = tree.get(name)
    if known is not None or "." not in name:
        return known
    branch: _Tree = tree
    for part in name.split("."):
        if part not in branch:
            return None
        branch = branch[part]
        if not branch:  # redacted completely
            return {}
    return branch


def _field(item: Any, branch: _Tree | None) -> Any:
    if branch is None:
        return item
    if not branch:
        return None if item is None else REDACTED
    if isinstance(item, list | tuple):
        return [_field(one, branch) for one in item]
    # A field inside was declared, but this is a scalar: for example a card number where a card object was expected.
    return _redacted(item, branch) if isinstance(item, Mapping) or item is None else REDACTED


# -- envelopes -----------------------------------------------------------------------------------


def redact_body(body: bytes, paths: Collection[str], content_type: str = "") -> bytes:
    """Return a raw body as it may be stored: nothing of it if it cannot be searched for declared fields."""
    tree = read_paths(paths)
    if not tree:
        return body
    if content_type.partition(";")[0].strip().lower() == FORM:
        return _redact_form(body, tree)
    try:
        return msgspec.json.encode(_redacted(msgspec.json.decode(body), tree))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return f"{REDACTED}: {len(body)} bytes that are not JSON".encode()


def _redact_form(body: bytes, tree: _Tree) -> bytes:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=1_000)
    except ValueError:
        return f"{REDACTED}: {len(body)} bytes that are not a form".encode()
    return urlencode([(name, value if _branch(tree, name) is None else REDACTED) for name, value in pairs]).encode()


def kept_headers(headers: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """Keep only known headers. `more` adds names, but none that carries a secret."""
    names = KEPT.union(_more_names(tuple(more)))
    return {name: value[:LONGEST_HEADER] for name, value in headers.items() if name.lower() in names}


@functools.lru_cache(maxsize=256)
def _more_names(names: tuple[str, ...]) -> frozenset[str]:
    for name in names:
        if any(word in name.lower() for word in SECRET_WORDS):
            raise Misuse(f"The header {name} carries a secret and is not stored; remove it from the list.")
    return frozenset(name.lower() for name in names)


def kept_url(url: str) -> str:
    """Strip user, query and fragment, which may carry function keys and SAS tokens."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return REDACTED
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def redact_envelope(envelope: Envelope, paths: Collection[str], more_headers: Collection[str] = ()) -> Envelope:
    """Return an envelope as it may be stored. Verify and read it first: its signature is removed."""
    return structs.replace(
        envelope,
        body=redact_body(envelope.body, paths, envelope.header("content-type")),
        headers=kept_headers(envelope.headers, more_headers),
        url=kept_url(envelope.url),
        query="",
    )
