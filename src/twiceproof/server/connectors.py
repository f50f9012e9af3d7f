"""Generates connector files for Power Automate and n8n."""

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
    """Parse the server's URL. Credentials in it are refused, because the file is passed on."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an unbalanced bracket
        raise _refused() from None
    odd = parts.query or parts.fragment or " " in url or not url.isprintable()  # the parser drops line breaks
    if odd or parts.scheme not in ("http", "https") or not HOST.fullmatch(parts.netloc):
        raise _refused()
    return parts


def _refused() -> Misuse:
    return Misuse("This is not the plain URL of a server; write it like https://hooks.example.com")


INPUT = "Operation and key"
REQUEST = "Generate a request id"
CLAIM = "Claim once"
IS_CLAIMED = "Claimed?"
IS_HANDLED = "Done or in progress?"
NOT_CLAIMED = "Not claimed: done or in progress"
STOPPED = "Stop: needs a person"
WORK = "Your work goes here"
CLAIM_URL = "/v1/claims/{{ encodeURIComponent($json.operation) }}/{{ encodeURIComponent($json.key) }}"
INPUT_JSON = f"$('{INPUT}').item.json"
END_URL = (
    f"/v1/claims/{{{{ encodeURIComponent({INPUT_JSON}.operation) }}}}/{{{{ encodeURIComponent({INPUT_JSON}.key) }}}}"
)
N8N_TOKEN = f"$('{CLAIM}').item.json.token"

Node = dict[str, Any]


def n8n(url: str) -> dict[str, Any]:
    """Return the file for a server at this URL."""
    nodes = _nodes(server_at(url).geturl().rstrip("/"))
    return {
        "id": _own_id(),
        "name": "Twiceproof: claim once",
        "nodes": nodes,
        "connections": {
            "Start": _to(INPUT),
            INPUT: _to(REQUEST),
            REQUEST: _to(CLAIM),
            CLAIM: _to(IS_CLAIMED),
            IS_CLAIMED: _to(WORK, IS_HANDLED),
            IS_HANDLED: _to(NOT_CLAIMED, STOPPED),
            WORK: _to("Mark as done", "Mark as failed"),
        },
        "settings": {"executionOrder": "v1"},
        "active": False,
        "pinData": {},
    }


def _nodes(base: str) -> list[Node]:
    return [
        _node("Start", "manualTrigger", 1, 0, 0, {}),
        _node(INPUT, "set", 3.4, 220, 0, _input_fields()),
        # A separate node: a retry of the claim evaluates its own fields again, and must send the same id.
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
        _node(IS_CLAIMED, "if", 2.2, 880, 0, _conditions(("$json.claimed", "boolean", "true", ""))),
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
        # A workflow that ended successfully would hide work that is not done.
        _node(
            IS_HANDLED,
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
        _node(NOT_CLAIMED, "noOp", 1, 1320, 160, {}),
        _node(STOPPED, "stopAndError", 1, 1320, 320, {"errorMessage": "={{ $json.next }}"}),
    ]


def _own_id() -> str:
    """`n8n import:workflow` requires an id and replaces the workflow that has it: each file is a new workflow."""
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


def _input_fields() -> dict[str, Any]:
    """The values that the user replaces with data of the trigger."""
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
    """A request to the server. n8n stores the token as a header credential, never in the file."""
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
    retry = {"retryOnFail": True, "maxTries": 3, "waitBetweenTries": 1_000}  # a response may be lost
    return {**_node(name, "httpRequest", 4.2, x, y, parameters), **retry}


def _conditions(*rows: tuple[str, str, str, Any]) -> dict[str, Any]:
    """All must hold. Each row: the left value, its type, the operator, and the right value."""
    conditions = [
        {
            "id": str(uuid5(NAMESPACE_URL, f"twiceproof:{what}:{than}")),
            "leftValue": f"={{{{ {what} }}}}",
            "rightValue": than,
            "operator": {"type": kind, "operation": how, **({"singleValue": True} if kind == "boolean" else {})},
        }
        for what, kind, how, than in rows
    ]
    options = {"caseSensitive": True, "leftValue": "", "typeValidation": "strict", "version": 2}
    return {"conditions": {"options": options, "conditions": conditions, "combinator": "and"}, "options": {}}


def _to(*names: str) -> dict[str, Any]:
    """Connect one output per name, in order."""
    return {"main": [[{"node": name, "type": "main", "index": 0}] for name in names]}


OPERATION = {
    "name": "operation",
    "in": "path",
    "required": True,
    "type": "string",
    "x-ms-summary": "Operation",
    "description": "A short name for this work, like ship or invoice: letters, digits, _ . - @",
    "x-ms-url-encoding": "single",
}
KEY = {
    "name": "key",
    "in": "path",
    "required": True,
    "type": "string",
    "x-ms-summary": "Key",
    "description": "Identifies the request: an order number, a message id. Never a time.",
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
CONNECTOR_TOKEN = ("token", "Token", "The token that Claim once returned.", True)


def power_automate(url: str) -> dict[str, Any]:
    """Return the file for a server at this URL."""
    parts = server_at(url)
    return {
        "swagger": "2.0",
        "info": {
            "title": "Twiceproof",
            "version": "1.0",
            "description": "Claim a key before you do the work, so that it is done once, however often the flow runs.",
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
            "put": _action("ClaimOnce", "Claim once", "Claim the work for this run. First action of a flow.", _claim()),
            "get": _action(
                "LookAtClaim", "Look at a claim", "Show the state of a claim. Changes nothing.", None, STATE
            ),
        },
        f"{path}/complete": {
            "post": _action("MarkAsDone", "Mark as done", "The work is done; duplicates get its result.", _done()),
        },
        f"{path}/fail": {
            "post": _action(
                "MarkAsFailed", "Mark as failed", "The work failed; choose whether to try again.", _failed()
            ),
        },
        f"{path}/renew": {
            "post": _action("HoldOn", "Extend a claim", "The work takes longer than planned.", _renewed()),
        },
    }


def _claim() -> list[dict[str, Any]]:
    return [
        _field(
            "payload", "Payload", "The data of the request: a different one under the same key is refused.", kind=None
        ),
        _field("lease", "Lease", 'How long the work may take: "5m", "2h".', default="5m"),
        _field(
            "request_id",
            "Request id",
            "Outputs of a Compose action before this one, with the expression guid(). "
            "Power Automate repeats requests by itself; this id identifies the repetition.",
        ),
        _field(
            "repeat",
            "If a run was lost",
            '"never": a person must decide. "safe": the work may be repeated.',
            default="never",
            choices=["never", "safe"],
            advanced=True,
        ),
        _field("link", "Link", "The URL of this run.", advanced=True),
    ]


def _done() -> list[dict[str, Any]]:
    return [
        _field(*CONNECTOR_TOKEN[:3], required=True),
        _field("result", "Result", "Returned to every duplicate.", kind=None),
        _field("keep", "Remember for", 'How long the key is remembered: "30d", "forever".', advanced=True),
    ]


def _failed() -> list[dict[str, Any]]:
    return [
        _field(*CONNECTOR_TOKEN[:3], required=True),
        _field("error", "Error", "Why it failed."),
        _field("retryable", "Try again", "Yes: the next run may try again.", kind="boolean", default=True),
        _field(
            "unknown",
            "Outcome unknown",
            "Yes: it is not known whether it happened; a person must decide.",
            kind="boolean",
            default=False,
        ),
    ]


def _renewed() -> list[dict[str, Any]]:
    return [
        _field(*CONNECTOR_TOKEN[:3], required=True),
        _field("lease", "Lease", "How much longer, from now on.", default="5m"),
    ]


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
    """One field of a body. `kind=None` accepts any JSON."""
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
        "responses": {"200": {"description": "The outcome.", "schema": answer or OUTCOME}},
    }


def _body(fields: list[dict[str, Any]]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {field["name"]: field["schema"] for field in fields}}
    required = [field["name"] for field in fields if field["required"]]
    if required:
        schema["required"] = required
    return {"name": "body", "in": "body", "required": True, "schema": schema}


def _property(kind: str, summary: str, about: str) -> dict[str, Any]:
    return {"type": kind, "x-ms-summary": summary, "description": about}


OUTCOME = {
    "type": "object",
    "properties": {
        "claimed": _property("boolean", "Claimed", "Yes: do the work. No: do not."),
        "state": _property("string", "State", "held, done, failed or review"),
        "token": _property("string", "Token", "For Mark as done and Mark as failed."),
        "result": {"x-ms-summary": "Result", "description": "The result that the first run stored."},
        "attempt": _property("integer", "Attempt", "Attempt number."),
        "retry_after": _property("integer", "Retry after", "Seconds, while another run is at work."),
        "detail": _property("string", "Reason", "Why it was not claimed."),
        "next": _property("string", "Next step", "What to do."),
        "run": _property("string", "Run", "The id by which a person settles it."),
        "status": _property("integer", "Status", "The HTTP status without always200."),
    },
}
STATE = {
    "type": "object",
    "properties": {
        **{name: OUTCOME["properties"][name] for name in ("state", "result", "attempt", "run")},  # type: ignore[index]
        "lapsed": _property("boolean", "Lapsed", "Yes: the lease of its holder has expired."),
    },
}
