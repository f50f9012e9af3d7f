"""A workflow for n8n: claim, branch on the answer, work, mark as done or as failed. The middle is left to its maker."""

from __future__ import annotations

import secrets
import string
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from .server_at import server_at

__all__ = ["n8n"]

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
TOKEN = f"$('{CLAIM}').item.json.token"

Node = dict[str, Any]


def n8n(url: str) -> dict[str, Any]:
    """For a server at this address."""
    base = server_at(url).geturl().rstrip("/")
    nodes = [
        _node("Start", "manualTrigger", 1, 0, 0, {}),
        _node("What and which", "set", 3.4, 220, 0, _asked()),
        # In a node of its own: the claim's own next try evaluates its fields anew, and must send the same id.
        _node(REQUEST, "crypto", 1, 440, 0,
              {"action": "generate", "encodingType": "uuid", "dataPropertyName": "request_id"}),
        _request(CLAIM, 660, 0, "PUT", f"={base}{CLAIM_URL}",
                 "={{ JSON.stringify({ payload: $json.payload, lease: '5m', request_id: $json.request_id }) }}"),
        _node(IS_OURS, "if", 2.2, 880, 0, _conditions(("$json.claimed", "boolean", "true", ""))),
        {**_node(WORK, "noOp", 1, 1100, -120, {}), "onError": "continueErrorOutput"},
        _request("Mark as done", 1320, -200, "POST", f"={base}{END_URL}/complete",
                 f"={{{{ JSON.stringify({{ token: {TOKEN}, result: $json }}) }}}}"),
        _request("Mark as failed", 1320, 0, "POST", f"={base}{END_URL}/fail",
                 f"={{{{ JSON.stringify({{ token: {TOKEN}, error: 'the work failed', retryable: true }}) }}}}"),
        # One that ended in green would hide what nobody does any more.
        _node(IS_CARED_FOR, "if", 2.2, 1100, 160, _conditions(
            ("$json.status", "number", "notEquals", 422), ("$json.state", "string", "notEquals", "review"),
            ("$json.state", "string", "notEquals", "failed"),
        )),
        _node(NOT_OURS, "noOp", 1, 1320, 160, {}),
        _node(STUCK, "stopAndError", 1, 1320, 320, {"errorMessage": "={{ $json.next }}"}),
    ]  # fmt: skip
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
        "id": str(uuid5(NAMESPACE_URL, f"twiceproof:{name}")), "name": name, "type": f"n8n-nodes-base.{kind}",
        "typeVersion": version, "position": [x, y], "parameters": parameters,
    }  # fmt: skip


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
