"""Simulators of the mailboxes of Microsoft Graph and Gmail: messages, drafts, and what was sent.

They do what their makers' documents say (read in November 2026); the services themselves were not at hand. Each creates
any number of equal drafts, and sends a draft once: after that it is no longer a draft.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from email import message_from_bytes, policy
from typing import Any

from .server import SimulatedAnswer, SimulatedRequest, Simulator

__all__ = ["GmailSimulator", "GraphSimulator"]

_VALUE = re.compile(r"ep/value eq '((?:[^']|'')*)'")
_MISSING = SimulatedAnswer(404, {"error": {"code": "ErrorItemNotFound", "message": "The object was not found."}})


class GraphSimulator(Simulator):
    """One mailbox; `sent` and `drafts` are the messages in it, as Graph has them."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[str, dict[str, Any]] = {}
        self._number = 0

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [one for one in self._messages.values() if not one["isDraft"]]

    @property
    def drafts(self) -> list[dict[str, Any]]:
        return [one for one in self._messages.values() if one["isDraft"]]

    def handle(self, request: SimulatedRequest) -> SimulatedAnswer:
        _, _, rest = request.path.partition("/messages")
        name, _, action = rest.strip("/").partition("/")
        if request.method == "POST" and not name:
            return self._create(request.json)
        if not name:
            return self._list(request.query["$filter"])
        if name not in self._messages:
            return _MISSING
        if request.method == "DELETE":
            del self._messages[name]
            return SimulatedAnswer(204)
        if action == "send" and self._messages[name]["isDraft"]:
            self._messages[name]["isDraft"] = False
            return SimulatedAnswer(202)
        return _MISSING

    def _create(self, message: dict[str, Any]) -> SimulatedAnswer:
        self._number += 1
        made = {**message, "id": f"AAk{self._number:06}=", "isDraft": True}
        self._messages[made["id"]] = made
        return SimulatedAnswer(201, made)

    def _list(self, asked: str) -> SimulatedAnswer:
        wanted = _VALUE.findall(asked)
        found = [
            {"id": one["id"], "isDraft": one["isDraft"]}
            for one in self._messages.values()
            if [each["value"] for each in one["singleValueExtendedProperties"]] == wanted
        ]
        return SimulatedAnswer(200, {"value": found[::-1]})


class GmailSimulator(Simulator):
    """One mailbox; `sent` and `drafts` are the messages in it, by their ids, each read as mail."""

    def __init__(self) -> None:
        super().__init__()
        self._drafts: dict[str, str] = {}  # the message of each draft
        self._mails: dict[str, Any] = {}
        self._number = 0

    @property
    def sent(self) -> list[Any]:
        unsent = set(self._drafts.values())
        return [mail for name, mail in self._mails.items() if name not in unsent]

    @property
    def drafts(self) -> list[Any]:
        return [self._mails[name] for name in self._drafts.values()]

    def handle(self, request: SimulatedRequest) -> SimulatedAnswer:
        _, _, place = request.path.partition("/users/me/")
        noun, _, name = place.partition("/")
        if request.method == "POST":
            return self._send(request.json["id"]) if name == "send" else self._create(request.json["message"]["raw"])
        if request.method == "DELETE":
            return self._remove(name)
        if name:
            labels = ["DRAFT"] if name in self._drafts.values() else ["SENT"]
            return SimulatedAnswer(200, {"id": name, "labelIds": labels}) if name in self._mails else _MISSING
        return self._list(noun, request.query["q"].removeprefix("rfc822msgid:"))

    def _create(self, raw: str) -> SimulatedAnswer:
        mail = self._add(message_from_bytes(urlsafe_b64decode(raw), policy=policy.default))
        draft = f"r{self._number}"
        self._drafts[draft] = mail
        return SimulatedAnswer(200, {"id": draft, "message": {"id": mail, "labelIds": ["DRAFT"]}})

    def _add(self, mail: Any) -> str:
        self._number += 1
        self._mails[f"18{self._number:06x}"] = mail
        return f"18{self._number:06x}"

    def _send(self, draft: str) -> SimulatedAnswer:
        if draft not in self._drafts:
            return _MISSING
        sent = self._add(self._mails.pop(self._drafts.pop(draft)))
        return SimulatedAnswer(200, {"id": sent, "labelIds": ["SENT"]})

    def _remove(self, draft: str) -> SimulatedAnswer:
        if draft not in self._drafts:
            return _MISSING
        del self._mails[self._drafts.pop(draft)]
        return SimulatedAnswer(204)

    def _list(self, noun: str, message_id: str) -> SimulatedAnswer:
        same = [name for name, mail in self._mails.items() if mail["Message-ID"].strip("<>") == message_id]
        if noun == "messages":
            return SimulatedAnswer(200, {"messages": [{"id": name} for name in same]} if same else {})
        drafts = [{"id": one, "message": {"id": name}} for one, name in self._drafts.items() if name in same]
        return SimulatedAnswer(200, {"drafts": drafts} if drafts else {})
