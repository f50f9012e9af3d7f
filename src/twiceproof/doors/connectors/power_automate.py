"""A custom connector for Power Automate: OpenAPI 2.0, with names that people read. It never needs a status code."""

from __future__ import annotations

from typing import Any

from .server_at import server_at

__all__ = ["power_automate"]

OPERATION = {
    "name": "operation", "in": "path", "required": True, "type": "string", "x-ms-summary": "What is done",
    "description": "A short name for this work, like ship or invoice: letters, digits, _ . - @",
    "x-ms-url-encoding": "single",
}  # fmt: skip
KEY = {
    "name": "key", "in": "path", "required": True, "type": "string", "x-ms-summary": "Key",
    "description": "What makes two requests the same: an order's number, a message's id. Never a time.",
    "x-ms-url-encoding": "single",
}  # fmt: skip
ALWAYS = {
    "name": "always200", "in": "query", "required": True, "type": "boolean", "default": True,
    "x-ms-visibility": "internal",
}  # fmt: skip
TOKEN = ("token", "Token", "The token that Claim once gave you.", True)


def power_automate(url: str) -> dict[str, Any]:
    """For a server at this address."""
    parts = server_at(url)
    return {
        "swagger": "2.0",
        "info": {
            "title": "Twiceproof", "version": "1.0",
            "description": "Claim something before you do it, so that it happens once, however often the flow runs.",
        },
        "host": parts.netloc,
        "basePath": parts.path.rstrip("/") or "/",
        "schemes": [parts.scheme],
        "consumes": ["application/json"],
        "produces": ["application/json"],
        "securityDefinitions": {
            "token": {"type": "apiKey", "in": "header", "name": "Authorization"},
        },
        "security": [{"token": []}],
        "paths": _paths(),
    }  # fmt: skip


def _paths() -> dict[str, Any]:
    path = "/v1/claims/{operation}/{key}"
    return {
        path: {
            "put": _action("ClaimOnce", "Claim once", "Be the only one to do this. First action of a flow.", _claim()),
            "get": _action("LookAtClaim", "Look at a claim", "See what became of it. Changes nothing.", None, LOOKED),
        },
        f"{path}/complete": {
            "post": _action("MarkAsDone", "Mark as done", "The work is done; duplicates get its result.", _done()),
        },
        f"{path}/fail": {
            "post": _action("MarkAsFailed", "Mark as failed", "The work failed; say whether to try again.", _failed()),
        },
        f"{path}/renew": {
            "post": _action("HoldOn", "Hold on", "The work takes longer than you said.", _renewed()),
        },
    }  # fmt: skip


def _claim() -> list[dict[str, Any]]:
    return [
        _field("payload", "What it is about", "The order itself: another under the same key is refused.", kind=None),
        _field("lease", "For how long", 'How long the work may take: "5m", "2h".', default="5m"),
        _field("request_id", "Request id", "Outputs of a Compose action before this one, with the expression guid(). "
               "Power Automate sends a request again by itself; by this we know it again."),
        _field("repeat", "If a run was lost", '"never": ask a person. "safe": doing it twice does no harm.',
               default="never", choices=["never", "safe"], advanced=True),
        _field("link", "Link", "Where to look at this run.", advanced=True),
    ]  # fmt: skip


def _done() -> list[dict[str, Any]]:
    return [
        _field(*TOKEN[:3], required=True),
        _field("result", "Result", "What every duplicate will be told.", kind=None),
        _field("keep", "Remember for", 'How long the key is known: "30d", "forever".', advanced=True),
    ]


def _failed() -> list[dict[str, Any]]:
    return [
        _field(*TOKEN[:3], required=True),
        _field("error", "Why", "For whoever looks at it."),
        _field("retryable", "Try again", "Yes: the next run may try again.", kind="boolean", default=True),
        _field("unknown", "Not known", "Yes: nobody knows whether it happened; a person must say.", kind="boolean",
               default=False),
    ]  # fmt: skip


def _renewed() -> list[dict[str, Any]]:
    return [_field(*TOKEN[:3], required=True), _field("lease", "For how long", "From now on.", default="5m")]


def _field(
    name: str, summary: str, about: str, *, kind: str | None = "string", default: Any = None,
    choices: list[str] | None = None, required: bool = False, advanced: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """One field of a body. `kind=None` is anything at all."""
    schema: dict[str, Any] = {"x-ms-summary": summary, "description": about}
    if kind is not None:
        schema["type"] = kind
    if default is not None:
        schema["default"] = default
    if choices is not None:
        schema["enum"] = choices
    schema["x-ms-visibility"] = "advanced" if advanced else "important"
    return {"name": name, "schema": schema, "required": required}


def _action(
    name: str, summary: str, about: str, fields: list[dict[str, Any]] | None, answer: dict[str, Any] | None = None
) -> dict[str, Any]:  # fmt: skip
    parameters = [OPERATION, KEY, ALWAYS]
    if fields is not None:
        parameters = [*parameters, _body(fields)]
    return {
        "operationId": name, "summary": summary, "description": about, "x-ms-visibility": "important",
        "parameters": parameters,
        "responses": {"200": {"description": "What became of it.", "schema": answer or ANSWERED}},
    }  # fmt: skip


def _body(fields: list[dict[str, Any]]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {field["name"]: field["schema"] for field in fields}}
    required = [field["name"] for field in fields if field["required"]]
    if required:
        schema["required"] = required
    return {"name": "body", "in": "body", "required": True, "schema": schema}


def _says(kind: str, summary: str, about: str) -> dict[str, Any]:
    return {"type": kind, "x-ms-summary": summary, "description": about}


ANSWERED = {
    "type": "object",
    "properties": {
        "claimed": _says("boolean", "Claimed", "Yes: it is yours, do the work. No: leave it."),
        "state": _says("string", "State", "held, done, failed or review"),
        "token": _says("string", "Token", "For Mark as done and Mark as failed."),
        "result": {"x-ms-summary": "Result", "description": "What the first run was told to remember."},
        "attempt": _says("integer", "Attempt", "The how-manieth try this is."),
        "retry_after": _says("integer", "Come back in", "Seconds, while somebody else is at work."),
        "detail": _says("string", "Why not", "In words."),
        "next": _says("string", "What to do", "In words."),
        "run": _says("string", "Run", "The id by which a person settles it."),
        "status": _says("integer", "Status", "What a caller that looks at status codes would have been told."),
    },
}
LOOKED = {
    "type": "object",
    "properties": {
        **{name: ANSWERED["properties"][name] for name in ("state", "result", "attempt", "run")},  # type: ignore[index]
        "lapsed": _says("boolean", "Lapsed", "Yes: whoever held it has not been heard of in time."),
    },
}
