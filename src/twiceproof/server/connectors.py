"""Files for Power Automate and n8n."""

from __future__ import annotations

import re
import secrets
import string
from typing import Any
from urllib.parse import SplitResult, urlsplit
from uuid import NAMESPACE_URL, uuid5

from ..errors import Misuse

__all__ = ["n8n", "power_automate", "server_at"]


HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?", re.ASCII)


def server_at(url: str) -> SplitResult:
    """A user and a password would be handed on with the file: the token is for that."""
    try:
        parts = urlsplit(url)
    except ValueError:  # half a bracket
        raise _refused() from None
    odd = parts.query or parts.fragment or " " in url or not url.isprintable()  # a line's end is dropped by the parser
    if odd or parts.scheme not in ("http", "https") or not HOST.fullmatch(parts.netloc):
        raise _refused()
    return parts


def _refused() -> Misuse:
    return Misuse("That is no address of a server, or there is more in it; write it like https://hooks.example.com")


REQUEST = "Draw a request id"
CLAIM = "Claim once"
IS_OURS = "Is it ours?"
IS_CARED_FOR = "Done before, or under way?"
NOT_OURS = "Not ours: done before, or under way"
STUCK = "Stuck: a person must look"
WORK = "Your work goes here"
CLAIM_URL = "/v1/claims/{{ encodeURIComponent($json.operation) }}/{{ encodeURIComponent($json.key) }}"
ASKED = "$('What and which').item.json"
END_URL = f"/v1/claims/{{{{ encodeURIComponent({ASKED}.operation) }}}}/{{{{ encodeURIComponent({ASKED}.key) }}}}"
N8N_TOKEN = f"$('{CLAIM}').item.json.token"

Node = dict[str, Any]


def n8n(url: str) -> dict[str, Any]:
    """For a server at this address."""
    base = server_at(url).geturl().rstrip("/")
    nodes = [
        _node("Start", "manualTrigger", 1, 0, 0, {}),
        _node("What and which", "set", 3.4, 220, 0, _asked()),
        # In a node of its own: the claim's own next try evaluates its fields anew, and must send the same id.
        _node(
            REQUEST,
            "crypto",
            1,
            440,
            0,
            {"action": "generate", "encodingType": "uuid", "dataPropertyName": "request_id"},
        ),
        _request(
            CLAIM,
            660,
            0,
            "PUT",
            f"={base}{CLAIM_URL}",
            "={{ JSON.stringify({ payload: $json.payload, lease: '5m', request_id: $json.request_id }) }}",
        ),
        _node(IS_OURS, "if", 2.2, 880, 0, _conditions(("$json.claimed", "boolean", "true", ""))),
        {**_node(WORK, "noOp", 1, 1100, -120, {}), "onError": "continueErrorOutput"},
        _request(
            "Mark as done",
            1320,
            -200,
            "POST",
            f"={base}{END_URL}/complete",
            f"={{{{ JSON.stringify({{ token: {N8N_TOKEN}, result: $json }}) }}}}",
        ),
        _request(
            "Mark as failed",
            1320,
            0,
            "POST",
            f"={base}{END_URL}/fail",
            f"={{{{ JSON.stringify({{ token: {N8N_TOKEN}, error: 'the work failed', retryable: true }}) }}}}",
        ),
        # One that ended in green would hide what nobody does any more.
        _node(
            IS_CARED_FOR,
            "if",
            2.2,
            1100,
            160,
            _conditions(
                ("$json.status", "number", "notEquals", 422),
                ("$json.state", "string", "notEquals", "review"),
                ("$json.state", "string", "notEquals", "failed"),
            ),
        ),
        _node(NOT_OURS, "noOp", 1, 1320, 160, {}),
        _node(STUCK, "stopAndError", 1, 1320, 320, {"errorMessage": "={{ $json.next }}"}),
    ]
    return {
        "id": _own_id(),
        "name": "Twiceproof: claim once",
        "nodes": nodes,
        "connections": {
            "Start": _to("What and which"),
            "What and which": _to(REQUEST),
            REQUEST: _to(CLAIM),
            CLAIM: _to(IS_OURS),
            IS_OURS: _to(WORK, IS_CARED_FOR),
            IS_CARED_FOR: _to(NOT_OURS, STUCK),
            WORK: _to("Mark as done", "Mark as failed"),
        },
        "settings": {"executionOrder": "v1"},
        "active": False,
        "pinData": {},
    }


def _own_id() -> str:
    """`n8n import:workflow` asks for one, and replaces a workflow that has the same: a new file is a new workflow."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(16))


def _node(name: str, kind: str, version: float, x: int, y: int, parameters: dict[str, Any]) -> Node:
    return {
        "id": str(uuid5(NAMESPACE_URL, f"twiceproof:{name}")),
        "name": name,
        "type": f"n8n-nodes-base.{kind}",
        "typeVersion": version,
        "position": [x, y],
        "parameters": parameters,
    }


def _asked() -> dict[str, Any]:
    """What the maker changes: taken from the trigger's data."""
    fields = (
        ("operation", "string", "ship"),
        ("key", "string", "shop:order:10492"),
        ("payload", "object", '{"order": 10492}'),
    )
    assigned = [
        {"id": str(uuid5(NAMESPACE_URL, f"twiceproof:{name}")), "name": name, "type": kind, "value": value}
        for name, kind, value in fields
    ]
    return {"mode": "manual", "assignments": {"assignments": assigned}, "options": {}}


def _request(name: str, x: int, y: int, method: str, url: str, body: str) -> Node:
    """The token of the server is kept by n8n, as a header credential; never in the file."""
    parameters = {
        "method": method,
        "url": url,
        "authentication": "genericCredentialType",
        "genericAuthType": "httpHeaderAuth",
        "sendQuery": True,
        "queryParameters": {"parameters": [{"name": "always200", "value": "true"}]},
        "sendBody": True,
        "specifyBody": "json",
        "jsonBody": body,
        "options": {},
    }
    again = {"retryOnFail": True, "maxTries": 3, "waitBetweenTries": 1_000}  # an answer may be lost
    return {**_node(name, "httpRequest", 4.2, x, y, parameters), **again}


def _conditions(*rows: tuple[str, str, str, Any]) -> dict[str, Any]:
    """All of them: of what, of which kind, compared how, with what."""
    asked = [
        {
            "id": str(uuid5(NAMESPACE_URL, f"twiceproof:{what}:{than}")),
            "leftValue": f"={{{{ {what} }}}}",
            "rightValue": than,
            "operator": {"type": kind, "operation": how, **({"singleValue": True} if kind == "boolean" else {})},
        }
        for what, kind, how, than in rows
    ]
    options = {"caseSensitive": True, "leftValue": "", "typeValidation": "strict", "version": 2}
    return {"conditions": {"options": options, "conditions": asked, "combinator": "and"}, "options": {}}


def _to(*names: str) -> dict[str, Any]:
    """One output per name, in order."""
    return {"main": [[{"node": name, "type": "main", "index": 0}] for name in names]}


OPERATION = {
    "name": "operation",
    "in": "path",
    "required": True,
    "type": "string",
    "x-ms-summary": "What is done",
    "description": "A short name for this work, like ship or invoice: letters, digits, _ . - @",
    "x-ms-url-encoding": "single",
}
KEY = {
    "name": "key",
    "in": "path",
    "required": True,
    "type": "string",
    "x-ms-summary": "Key",
    "description": "What makes two requests the same: an order's number, a message's id. Never a time.",
    "x-ms-url-encoding": "single",
}
ALWAYS = {
    "name": "always200",
    "in": "query",
    "required": True,
    "type": "boolean",
    "default": True,
    "x-ms-visibility": "internal",
}
CONNECTOR_TOKEN = ("token", "Token", "The token that Claim once gave you.", True)


def power_automate(url: str) -> dict[str, Any]:
    """For a server at this address."""
    parts = server_at(url)
    return {
        "swagger": "2.0",
        "info": {
            "title": "Twiceproof",
            "version": "1.0",
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
    }


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
    }


def _claim() -> list[dict[str, Any]]:
    return [
        _field("payload", "What it is about", "The order itself: another under the same key is refused.", kind=None),
        _field("lease", "For how long", 'How long the work may take: "5m", "2h".', default="5m"),
        _field(
            "request_id",
            "Request id",
            "Outputs of a Compose action before this one, with the expression guid(). "
            "Power Automate sends a request again by itself; by this we know it again.",
        ),
        _field(
            "repeat",
            "If a run was lost",
            '"never": ask a person. "safe": doing it twice does no harm.',
            default="never",
            choices=["never", "safe"],
            advanced=True,
        ),
        _field("link", "Link", "Where to look at this run.", advanced=True),
    ]


def _done() -> list[dict[str, Any]]:
    return [
        _field(*CONNECTOR_TOKEN[:3], required=True),
        _field("result", "Result", "What every duplicate will be told.", kind=None),
        _field("keep", "Remember for", 'How long the key is known: "30d", "forever".', advanced=True),
    ]


def _failed() -> list[dict[str, Any]]:
    return [
        _field(*CONNECTOR_TOKEN[:3], required=True),
        _field("error", "Why", "For whoever looks at it."),
        _field("retryable", "Try again", "Yes: the next run may try again.", kind="boolean", default=True),
        _field(
            "unknown",
            "Not known",
            "Yes: nobody knows whether it happened; a person must say.",
            kind="boolean",
            default=False,
        ),
    ]


def _renewed() -> list[dict[str, Any]]:
    return [_field(*CONNECTOR_TOKEN[:3], required=True), _field("lease", "For how long", "From now on.", default="5m")]


def _field(
    name: str,
    summary: str,
    about: str,
    *,
    kind: str | None = "string",
    default: Any = None,
    choices: list[str] | None = None,
    required: bool = False,
    advanced: bool = False,
) -> dict[str, Any]:
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
) -> dict[str, Any]:
    parameters = [OPERATION, KEY, ALWAYS]
    if fields is not None:
        parameters = [*parameters, _body(fields)]
    return {
        "operationId": name,
        "summary": summary,
        "description": about,
        "x-ms-visibility": "important",
        "parameters": parameters,
        "responses": {"200": {"description": "What became of it.", "schema": answer or ANSWERED}},
    }


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
