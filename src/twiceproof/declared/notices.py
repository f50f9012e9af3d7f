"""Mail and notices of a flow in a file: what an event may put into a message, and where the message goes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from email.utils import getaddresses
from typing import Any

import msgspec
from msgspec import Struct

from ..effects import http, mail
from ..effects.base import Effect, Look, Unknown
from ..effects.repeat import NEVER, SAFE, Declared
from ..effects.smtp import SmtpServer, smtp
from ..errors import Misuse, NotDone, OutcomeUnknown, TwiceproofError
from ..flows.engine.step_errors import BrokenFlowText
from ..flows.resources import Resource
from .connections import Connection, Connections, secret_of, secret_or_text
from .model import AskSpec, MailSpec, NotifySpec
from .template import read_text, read_value

__all__ = ["Describe", "Scope", "asking", "bytes_of", "redirected", "refuse_lines", "refuse_odd_mail", "server_of"]


Scope = Mapping[str, Any]
Describe = Callable[[Scope], Effect[Any]]
LONGEST_SUBJECT = 120
SHORTEST_SECRET = 4  # characters of a part of an address that is taken out of messages


def refuse_odd_mail(spec: MailSpec, made: Mapping[str, Any]) -> None:
    """Refuse values of an event that cannot be a part of a mail, or that would send it to others as well."""
    for name in ("to", "cc"):
        found = made[name]
        people = found if isinstance(found, list) else [found]
        if not all(isinstance(one, str) for one in people) or (name == "to" and not people):
            raise BrokenFlowText(f"{name}: an address, or a list of addresses, is expected here.", final=True)
        for one in people:
            refuse_lines(name, one)
        written = getattr(spec, name)
        has_fields = isinstance(written, str) and "{" in written and not written.startswith("=")
        if has_fields and len(getaddresses(people)) > _addresses(written):
            raise NotDone(f"{name}: {written} has several addresses in one field; give a list, with =.", final=True)
    for name in ("subject", "text", "html"):
        if not isinstance(made[name], str):
            raise BrokenFlowText(f"{name}: a text is expected here; write text(x), or json(x).", final=True)
    refuse_lines("subject", made["subject"])


def _addresses(written: str) -> int:
    return len([part for part in re.split("[,;]", written) if part.strip()])


def refuse_lines(name: str, text: str) -> None:
    if "\n" in text or "\r" in text:
        raise NotDone(f"{name}: it has a line break, which no mail may have there; use replace(x, …).", final=True)


def redirected(to: Connection, made: dict[str, Any]) -> dict[str, Any]:
    """For a draft: send every mail to one address, and mark it as a draft's."""
    if not to.redirect:
        return made
    return {**made, "to": to.redirect, "cc": "", "subject": f"DRAFT: {made['subject']}"}


def bytes_of(content: Any) -> bytes:
    """Return the bytes of a text, of any other value as JSON, or of what `keep` returned."""
    if isinstance(content, dict) and str(content.get("ref", "")).startswith(("res://", "data:")):
        data: bytes = msgspec.convert(content, Resource).read()
        return data
    return content.encode() if isinstance(content, str) else msgspec.json.encode(content)


def server_of(to: Connection) -> SmtpServer:
    host, _, port = str(to.smtp).partition(":")
    password: Any = secret_of(to.password) if to.password is not None else ""
    return smtp(host, port=int(port or 587), user=to.user, password=password, tls=to.tls)


def asking(spec: NotifySpec | AskSpec, connections: Connections) -> Describe:
    """Return the function that describes a notice: a line to a chat's webhook, to a mailbox, or to the log."""
    if connections.stand_in is not None and connections.stands_in(spec):
        return connections.stand_in.describer(spec)
    to = connections.get(spec.notify, "webhook", "log", "smtp")
    text, whom = read_text(spec.text), read_value(spec.to or to.to)

    def describe(scope: Scope) -> Effect[Any]:
        line = f"DRAFT: {text.render(scope)}" if connections.stand_in is not None else text.render(scope)
        if to.kind == "log":
            return LogLine(line)
        if to.kind == "smtp":
            subject = line.splitlines()[0][:LONGEST_SUBJECT]
            said = {"to": whom.evaluate(scope) or to.sender, "subject": subject, "text": line}
            return mail.send(mail.message(sender=to.sender, **redirected(to, said)), via=server_of(to))
        url = secret_or_text(str(to.webhook))
        if isinstance(url, str):
            return http.post(url, json={"text": line}, keep="status")
        return SecretNotice(spec.notify, line, url.values()[0])

    return describe


class SecretNotice(Struct, frozen=True):
    """A notice to a chat whose address is a secret: its path lets anybody write there. So the address is neither
    described nor in the text of a failure, which the ledger keeps and pages show.
    """

    connection: str
    line: str
    address: str

    def __repr__(self) -> str:
        return f"SecretNotice({self.connection})"

    @property
    def name(self) -> str:
        return f"notify {self.connection}"

    @property
    def repeat(self) -> Declared:
        return NEVER

    @property
    def result_type(self) -> Any:
        return Any

    def describe(self) -> dict[str, Any]:
        return {"notify": self.connection, "text": self.line}

    def perform(self, effect_key: str) -> Any:
        try:
            return http.post(self.address, json={"text": self.line}, keep="status").perform(effect_key)
        except TwiceproofError as error:
            raise self._without_address(error) from None

    def _without_address(self, error: TwiceproofError) -> TwiceproofError:
        text = str(error)
        _, _, place = self.address.partition("://")
        path = place[place.find("/") :] if "/" in place else ""
        parts = [part for part in re.split("[/?&=#]", path) if len(part) >= SHORTEST_SECRET]
        for part in (self.address, place, path, path.partition("?")[0], *parts):
            if len(part) >= SHORTEST_SECRET:
                text = text.replace(part, "…")
        if isinstance(error, NotDone | OutcomeUnknown):
            return type(error)(f"notify {self.connection}: {text}", **error.data)
        return Misuse(f"The address of {self.connection} cannot be used; correct what its reference names.")

    def look(self, effect_key: str) -> Look:
        return Unknown("a chat is not read")


class LogLine(Struct, frozen=True):
    """A notice to the log, which is safe to repeat."""

    line: str

    @property
    def name(self) -> str:
        return "log"

    @property
    def repeat(self) -> Declared:
        return SAFE

    @property
    def result_type(self) -> Any:
        return Any

    def describe(self) -> dict[str, Any]:
        return {"log": self.line}

    def perform(self, effect_key: str) -> None:
        logging.getLogger("twiceproof.flows").warning("%s", self.line)

    def look(self, effect_key: str) -> Look:
        return Unknown("a log is not read")
