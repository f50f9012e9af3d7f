"""Mailboxes of Microsoft Graph and Gmail, where a mail is first a draft: found by its key, created, sent, removed.

Neither API takes an idempotency key; a draft serves instead. It carries the effect key, one request sends it, and after
that it is no longer a draft, so it is sent only once. Checked against our simulators.
"""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Sequence
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import getaddresses
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from ..errors import Misuse, NotDone
from ..keys.duration import seconds
from .json_api import ApiAnswer, JsonApi, Token, encoded, json_api

__all__ = ["FoundMails", "GmailMailbox", "GraphMailbox", "Mailbox", "gmail", "graph"]

GRAPH, GMAIL = "https://graph.microsoft.com", "https://gmail.googleapis.com"
# A named property of a message in Graph, which can be searched for; the GUID is a name space of our own.
KEY_PROPERTY = "String {6f6a1d2e-3b57-4a0c-9a39-8d1b6f0c7e52} Name TwiceproofEffectKey"
IMMUTABLE = {"Prefer": 'IdType="ImmutableId"'}  # so that a draft keeps its id when it is sent
MOST_FOUND = "50"
LARGEST_ATTACHMENTS = 3_000_000  # bytes: what Graph takes in one request
SETTLING = 60.0  # seconds until a search shows what was created or sent
GONE = 404


class FoundMails(Struct, frozen=True):
    """The mails with one key, by their ids: those that are drafts, and those that were sent."""

    drafts: tuple[str, ...]
    sent: tuple[str, ...]


class Mailbox(Protocol):
    """What `mail.send` needs of a mailbox. All raise what `JsonApi.require` raises."""

    @property
    def api(self) -> JsonApi: ...

    @property
    def settling(self) -> float: ...

    def find(self, message_id: str, effect_key: str) -> FoundMails: ...

    def create(self, message: EmailMessage, effect_key: str) -> str:
        """Create a draft, and return its id. The message has its Message-ID and Bcc."""

    def send(self, draft: str, effect_key: str) -> bool:
        """Send a draft. False: there is no such draft (any more)."""

    def remove(self, draft: str) -> None:
        """Remove a draft. One that is gone is no error."""


def graph(
    *, auth: Token, user: str = "me", settling: str | float = SETTLING, url: str = GRAPH, timeout: float = 30.0
) -> GraphMailbox:
    """Return a mailbox of Microsoft 365, by Microsoft Graph: `mail.send(message, via=mail.graph(auth=get_token))`.

    Args:
        auth: `env("NAME")`, or a function that returns a bearer token. It needs Mail.ReadWrite and Mail.Send.
        user: Whose mailbox: an id or address; by default that of the token's user.
        settling: How long a mail may take until it is found.
        url: The address of Graph, for other clouds and tests.
        timeout: How long one request may take.
    """
    wait = seconds(settling, name="settling", positive=False)
    return GraphMailbox(json_api(url, auth, timeout=timeout), _user(user), wait)


def gmail(
    *, auth: Token, user: str = "me", settling: str | float = SETTLING, url: str = GMAIL, timeout: float = 30.0
) -> GmailMailbox:
    """Return a mailbox of Gmail: `mail.send(message, via=mail.gmail(auth=get_token))`.

    Args:
        auth: `env("NAME")`, or a function that returns a bearer token. It needs the scope gmail.modify, or
            gmail.compose with gmail.readonly.
        user: Whose mailbox: an address; by default that of the token's user.
        settling: How long a mail may take until a search finds it.
        url: The address of the API, for tests.
        timeout: How long one request may take.
    """
    wait = seconds(settling, name="settling", positive=False)
    return GmailMailbox(json_api(url, auth, timeout=timeout), _user(user), wait)


class _ApiMailbox(Struct, frozen=True):
    api: JsonApi
    user: str
    settling: float

    service: ClassVar[str]

    def __repr__(self) -> str:
        return f"mail.{self.service}(user={self.user!r})"

    def _ask(self, method: str, path: str, *, gone: bool = False, **given: Any) -> ApiAnswer | None:
        """Send one request. With `gone`, 404 is a valid answer and returns None."""
        answer = self.api.call(method, path, **given)
        if gone and answer.status == GONE:
            return None
        return self.api.settle(answer, f"{method} {self.service}")

    def _read(self, path: str, **params: str) -> Any:
        return self.api.require("GET", path, params=params, headers=IMMUTABLE).body


class GraphMailbox(_ApiMailbox, frozen=True):
    """`graph(…)`. Sending moves a draft to the sent items, with its property."""

    service: ClassVar[str] = "graph"

    @property
    def _path(self) -> str:
        whose = "me" if self.user == "me" else f"users/{encoded(self.user)}"
        return f"/v1.0/{whose}/messages"

    def find(self, message_id: str, effect_key: str) -> FoundMails:
        same = f"ep/id eq '{KEY_PROPERTY}' and ep/value eq '{effect_key}'"
        params = {"$filter": f"singleValueExtendedProperties/Any(ep: {same})", "$select": "id,isDraft"}
        found = self._read(self._path, **params, **{"$top": MOST_FOUND})["value"]
        drafts = tuple(sorted(one["id"] for one in found if one["isDraft"]))
        return FoundMails(drafts, tuple(sorted(one["id"] for one in found if not one["isDraft"])))

    def create(self, message: EmailMessage, effect_key: str) -> str:
        made = _graph_message(message, effect_key)
        answer = self._ask("POST", self._path, json=made, headers=IMMUTABLE, effect_key=effect_key)
        return str(_body(answer)["id"])

    def send(self, draft: str, effect_key: str) -> bool:
        path = f"{self._path}/{encoded(draft)}/send"
        return self._ask("POST", path, gone=True, headers=IMMUTABLE, effect_key=effect_key) is not None

    def remove(self, draft: str) -> None:
        self._ask("DELETE", f"{self._path}/{encoded(draft)}", gone=True, headers=IMMUTABLE)


class GmailMailbox(_ApiMailbox, frozen=True):
    """`gmail(…)`. Sending replaces a draft by a new message; both have the same Message-ID."""

    service: ClassVar[str] = "gmail"

    @property
    def _path(self) -> str:
        return f"/gmail/v1/users/{encoded(self.user)}"

    def find(self, message_id: str, effect_key: str) -> FoundMails:
        asked = {"q": f"rfc822msgid:{message_id.strip('<>')}", "maxResults": MOST_FOUND, "includeSpamTrash": "true"}
        listed = self._read(f"{self._path}/drafts", **asked).get("drafts", [])
        unsent = {one["message"]["id"] for one in listed}
        found = self._read(f"{self._path}/messages", **asked).get("messages", [])
        drafts = tuple(sorted(one["id"] for one in listed))
        return FoundMails(drafts, tuple(sorted(self._sent(one["id"]) for one in found if one["id"] not in unsent)))

    def _sent(self, mail: str) -> str:
        """Return the id of a message that is not a draft. A message whose draft was sent between two lists is read once
        more.
        """
        found = self._read(f"{self._path}/messages/{encoded(mail)}", format="minimal")
        if "DRAFT" in found.get("labelIds", []):
            raise NotDone("a draft changed while mails were listed; it can be tried again.", retry_after=1.0)
        return str(found["id"])

    def create(self, message: EmailMessage, effect_key: str) -> str:
        raw = urlsafe_b64encode(message.as_bytes(policy=SMTP.clone(utf8=True))).decode()
        made = {"message": {"raw": raw}}
        return str(_body(self._ask("POST", f"{self._path}/drafts", json=made, effect_key=effect_key))["id"])

    def send(self, draft: str, effect_key: str) -> bool:
        path, given = f"{self._path}/drafts/send", {"json": {"id": draft}, "effect_key": effect_key}
        return self._ask("POST", path, gone=True, **given) is not None

    def remove(self, draft: str) -> None:
        self._ask("DELETE", f"{self._path}/drafts/{encoded(draft)}", gone=True)


def _body(answer: ApiAnswer | None) -> Any:
    if answer is None or not isinstance(answer.body, dict):
        raise NotDone("the draft was answered without its id; nothing was sent, it can be tried again.")
    return answer.body


def _user(user: str) -> str:
    if not isinstance(user, str) or not user or not user.isprintable():
        raise Misuse('user= is the address or id of a mailbox; leave it out for "me".')
    return user


# -- a message in Graph's words ------------------------------------------------------------------------


def _graph_message(message: EmailMessage, effect_key: str) -> dict[str, Any]:
    html = message.get_body(("html",))
    body = html or message.get_body(("plain",))
    text = "" if body is None else body.get_content()
    recipients = {"toRecipients": "To", "ccRecipients": "Cc", "bccRecipients": "Bcc", "replyTo": "Reply-To"}
    return {
        "subject": str(message["Subject"] or ""),
        "body": {"contentType": "text" if html is None else "html", "content": text},
        **{field: people for field, name in recipients.items() if (people := _people(message.get_all(name, [])))},
        **({"attachments": files} if (files := _attachments(message)) else {}),
        "internetMessageId": str(message["Message-ID"]),
        "singleValueExtendedProperties": [{"id": KEY_PROPERTY, "value": effect_key}],
    }


def _people(values: Sequence[Any]) -> list[dict[str, Any]]:
    pairs = getaddresses([str(value) for value in values])
    return [{"emailAddress": {"address": at, **({"name": name} if name else {})}} for name, at in pairs if at]


def _attachments(message: EmailMessage) -> list[dict[str, Any]]:
    files = [(part, part.get_payload(decode=True) or b"") for part in message.iter_attachments()]
    if sum(len(data) for _, data in files if isinstance(data, bytes)) > LARGEST_ATTACHMENTS:
        raise NotDone("Graph takes attachments of up to 3 MB with a draft; send a link instead.", final=True)
    return [
        {
            "@odata.type": "#microsoft.graph.fileAttachment",
            "name": part.get_filename() or "attachment",
            "contentType": part.get_content_type(),
            "contentBytes": b64encode(data).decode(),
        }
        for part, data in files
        if isinstance(data, bytes)
    ]
