"""What is left out before anything is stored: declared fields, headers nobody named, and queries of URLs.

Pure functions. A field that is declared and not there is nothing to hide; a body that cannot be read is not kept.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import structs

from ..errors import Misuse
from .envelope import Envelope

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
# Kept for nobody, whoever asks.
SECRET_WORDS = ("auth", "cookie", "signature", "secret", "token", "password", "api-key", "apikey", "-sig", "hmac")

_Tree = dict[str, Any]  # {"card": {"number": {}}}: an empty branch is hidden whole


def redact(value: Any, paths: Collection[str]) -> Any:
    """The same value with the fields at these paths hidden: "card.number", in every item of a list on the way.

    What was given stays as it is.
    """
    return _hidden(value, read_paths(paths)) if paths else value


def read_paths(paths: Collection[str]) -> _Tree:
    """Raises Misuse for what names no field: found out when it is declared."""
    if isinstance(paths, str):  # redact="card" would hide the fields c, a, r and d
        raise Misuse(f'redact={paths!r} is one text, not a list of fields; write redact=("{paths}",).')
    return _planted(tuple(paths))


@functools.lru_cache(maxsize=256)
def _planted(paths: tuple[str, ...]) -> _Tree:
    tree: _Tree = {}
    for path in sorted(paths, key=lambda path: str(path).count("."), reverse=True):
        names = path.split(".") if isinstance(path, str) else [""]
        if not all(names):
            raise Misuse(f'redact has {path!r}, which names no field; write it like "card.number".')
        branch = tree
        for name in names[:-1]:
            branch = branch.setdefault(name, {})
        branch[names[-1]] = {}  # the shorter path comes later, and hides what is below it
    return tree


def _hidden(value: Any, tree: _Tree) -> Any:
    if isinstance(value, Mapping):
        return {name: _field(item, _branch(tree, str(name))) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item, tree) for item in value]
    return value


def _branch(tree: _Tree, name: str) -> _Tree | None:
    """What is declared below this name. Flat bodies and OData's annotations write a whole path as one name."""
    known: _Tree | None = tree.get(name)
    if known is not None or "." not in name:
        return known
    branch: _Tree = tree
    for part in name.split("."):
        if part not in branch:
            return None
        branch = branch[part]
        if not branch:  # hidden whole
            return {}
    return branch


def _field(item: Any, branch: _Tree | None) -> Any:
    if branch is None:
        return item
    if not branch:
        return None if item is None else REDACTED
    if isinstance(item, list | tuple):
        return [_field(one, branch) for one in item]
    # A field in here was declared, and here is a plain value: a card number where a card was expected.
    return _hidden(item, branch) if isinstance(item, Mapping) or item is None else REDACTED


# -- envelopes -----------------------------------------------------------------------------------


def redact_body(body: bytes, paths: Collection[str], content_type: str = "") -> bytes:
    """A raw body for keeping. Where declared fields cannot be looked for, nothing of it is kept."""
    tree = read_paths(paths)
    if not tree:
        return body
    if content_type.partition(";")[0].strip().lower() == FORM:
        return _redact_form(body, tree)
    try:
        return msgspec.json.encode(_hidden(msgspec.json.decode(body), tree))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return f"{REDACTED}: {len(body)} bytes that are no JSON".encode()


def _redact_form(body: bytes, tree: _Tree) -> bytes:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=1_000)
    except ValueError:
        return f"{REDACTED}: {len(body)} bytes that are no form".encode()
    return urlencode([(name, value if _branch(tree, name) is None else REDACTED) for name, value in pairs]).encode()


def kept_headers(headers: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """By name, and nothing else. `more` adds names; those that carry secrets stay out."""
    names = KEPT.union(_more_names(tuple(more)))
    return {name: value[:LONGEST_HEADER] for name, value in headers.items() if name.lower() in names}


@functools.lru_cache(maxsize=256)
def _more_names(names: tuple[str, ...]) -> frozenset[str]:
    for name in names:
        if any(word in name.lower() for word in SECRET_WORDS):
            raise Misuse(f"The header {name} carries a secret and is not kept; leave it out of the list.")
    return frozenset(name.lower() for name in names)


def kept_url(url: str) -> str:
    """Without user, query and fragment: function keys and SAS tokens are sent there."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return REDACTED
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def redact_envelope(envelope: Envelope, paths: Collection[str], more_headers: Collection[str] = ()) -> Envelope:
    """An envelope as it may be kept. Verify and read it first: its signature is gone."""
    return structs.replace(
        envelope,
        body=redact_body(envelope.body, paths, envelope.header("content-type")),
        headers=kept_headers(envelope.headers, more_headers),
        url=kept_url(envelope.url),
        query="",
    )
