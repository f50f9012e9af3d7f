"""Mails sent once: `mail.send(message, via=mail.smtp(…), look=mail.imap(…))`.

The Message-ID is made of the effect key, so every attempt at one step sends the same mail. That alone does not prevent
a second copy: mail servers deliver whatever they are given. If no answer comes after a mail was handed over, the folder
of sent mails is searched for the Message-ID; without a folder to search, a person decides.

`via=mail.graph(…)` and `via=mail.gmail(…)` create a draft that carries the key, and send it: such a mail can always be
found again.
"""

from __future__ import annotations

import imaplib
import logging
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, getaddresses
from hashlib import sha256
from typing import Any, TypeVar, overload

from msgspec import Struct

from ..errors import Misuse, NotDone, OutcomeUnknown
from ..keys.duration import seconds
from ..secret import Secret, secrets_of
from .base import Absent, Happened, Look, Unknown, outgoing_headers
from .mail_drafts import FoundMails, GmailMailbox, GraphMailbox, Mailbox, gmail, graph
from .repeat import NEVER, Declared, check
from .smtp import SmtpServer, smtp

__all__ = ["DraftSending", "ImapFolder", "MailSending", "SentMail", "gmail", "graph", "imap", "message", "send", "smtp"]

log = logging.getLogger("twiceproof")

T = TypeVar("T")
RECIPIENTS = ("To", "Cc", "Bcc")
VARYING = ("date", "message-id")  # left out of the description: they differ between attempts, or are set here
OURS = "tp_"  # prefix of every effect key
COPY_TIME = 60.0  # seconds that a provider may need to put a copy into the sent folder


class SentMail(Struct, frozen=True):
    """`refused` has the server's answer for each recipient that it refused. None: not known, since the folder of sent
    mails, Graph and Gmail do not say.
    """

    message_id: str
    refused: dict[str, str] | None = None


def message(
    *, sender: str, to: str | Sequence[str], subject: str, text: str, html: str = "", cc: str | Sequence[str] = ()
) -> EmailMessage:
    """Make a plain message. Any other `email.message.EmailMessage` can be sent as well."""
    made = EmailMessage()
    made["From"], made["To"] = sender, ", ".join([to] if isinstance(to, str) else to)
    if cc:
        made["Cc"] = ", ".join([cc] if isinstance(cc, str) else cc)
    made["Subject"] = subject
    made.set_content(text)
    if html:
        made.add_alternative(html, subtype="html")
    return made


@overload
def send(message: EmailMessage, *, via: SmtpServer, look: ImapFolder | None = None) -> MailSending: ...


@overload
def send(message: EmailMessage, *, via: GraphMailbox | GmailMailbox) -> DraftSending: ...


def send(
    message: EmailMessage, *, via: SmtpServer | GraphMailbox | GmailMailbox, look: ImapFolder | None = None
) -> MailSending | DraftSending:
    """Send a message to its To, Cc and Bcc in one transaction.

    A recipient that an SMTP server refuses gets nothing, and is reported in the result; the others get the mail.

    Args:
        message: What is sent.
        via: `mail.smtp(…)`, `mail.graph(…)` or `mail.gmail(…)`.
        look: `mail.imap(…)`, the folder of mails sent by SMTP. Graph and Gmail are asked themselves.
    """
    if not isinstance(message, EmailMessage):
        raise Misuse("mail.send takes an email.message.EmailMessage; make one with mail.message(…).")
    if not isinstance(via, SmtpServer | GraphMailbox | GmailMailbox):
        raise Misuse('via= is a mail server; write mail.smtp("smtp.example.org", …), mail.graph(…) or mail.gmail(…).')
    if look is not None and not isinstance(look, ImapFolder):
        raise Misuse('look= is the folder of sent mails; write look=mail.imap("imap.example.org", …).')
    if message["Message-ID"]:
        raise Misuse("The Message-ID is made of the effect key, so that a repeat has the same; leave it out.")
    people = _addresses(message, RECIPIENTS)
    senders = _addresses(message, ("Sender",)) or _addresses(message, ("From",))
    if not people or len(senders) != 1 or "@" not in senders[0]:
        raise Misuse("A message needs one sender (From, or Sender) and a recipient (To, Cc or Bcc); give both.")
    if isinstance(via, SmtpServer):
        return MailSending(_settled(message), senders[0], tuple(people), via, look)
    if look is not None:
        raise Misuse("Graph and Gmail are asked themselves whether a mail was sent; leave look= out.")
    return DraftSending(_settled(message), senders[0], tuple(people), via, tuple(_addresses(message, ("Bcc",))))


class MailSending(Struct, frozen=True):
    """`mail.send(…)`: `check` with a folder to look into, `never` without."""

    data: bytes
    sender: str
    people: tuple[str, ...]
    via: SmtpServer
    folder: ImapFolder | None = None

    @property
    def name(self) -> str:
        return f"mail to {self.people[0]}{' and others' if len(self.people) > 1 else ''}"

    @property
    def repeat(self) -> Declared:
        if self.folder is None:
            return NEVER
        return check(self.look, settling=self.via.timeout + self.folder.settling)

    @property
    def result_type(self) -> Any:
        return SentMail

    def describe(self) -> dict[str, Any]:
        return {
            "mail from": self.sender,
            "to": list(self.people),
            "via": self.via.host,
            "sha256": sha256(self.data).hexdigest(),
        }

    def message_id(self, effect_key: str) -> str:
        return f"<{effect_key}@{self.sender.rpartition('@')[2]}>"

    def perform(self, effect_key: str) -> SentMail:
        mail = _parsed(self.data)
        mail["Message-ID"] = self.message_id(effect_key)
        mail["Date"] = formatdate(self.via.now())
        for name, value in outgoing_headers.get().items():
            if value.isascii() and value.isprintable() and name not in mail:
                mail[name] = value
        return SentMail(self.message_id(effect_key), self.via.deliver(mail, self.sender, self.people))

    def look(self, effect_key: str) -> Look:
        if self.folder is None:
            return Unknown("there is no folder to look into; give mail.send a look=mail.imap(…)")
        return self.folder.find(self.message_id(effect_key))


class DraftSending(Struct, frozen=True):
    """`mail.send(…)` by a mailbox: `check`, because a mail is found as a draft, as a sent mail, or not at all."""

    data: bytes
    sender: str
    people: tuple[str, ...]
    via: Mailbox
    hidden: tuple[str, ...] = ()  # Bcc

    @property
    def name(self) -> str:
        return f"mail to {self.people[0]}{' and others' if len(self.people) > 1 else ''}"

    @property
    def repeat(self) -> Declared:
        return check(self.look, settling=self.via.api.timeout + self.via.settling)

    @property
    def result_type(self) -> Any:
        return SentMail

    def describe(self) -> dict[str, Any]:
        asked = {"mail from": self.sender, "to": list(self.people), "via": self.via.api.host}
        return {**asked, "sha256": sha256(self.data).hexdigest()}

    def message_id(self, effect_key: str) -> str:
        return f"<{effect_key}@{self.sender.rpartition('@')[2]}>"

    def perform(self, effect_key: str) -> SentMail:
        """Send the existing draft, or create one. Only the request that sends can have an unknown outcome."""
        found = self._before(lambda: self._find(effect_key))
        if not found.sent:
            draft = found.drafts[0] if found.drafts else self._before(lambda: self._create(effect_key))
            if not self.via.send(draft, effect_key):
                raise OutcomeUnknown(f"the draft of {self.name} is gone: sent by an earlier attempt, or removed.")
        self._remove_others(effect_key, found)
        return SentMail(self.message_id(effect_key))

    def _before(self, work: Callable[[], T]) -> T:
        """Before a draft is sent no mail goes out: any failure or missing answer up to here means that it was not
        done.
        """
        try:
            return work()
        except OutcomeUnknown as error:
            raise NotDone(str(error), retry_after=error.data.get("retry_after")) from error

    def _find(self, effect_key: str) -> FoundMails:
        return self.via.find(self.message_id(effect_key), effect_key)

    def _create(self, effect_key: str) -> str:
        mail = _parsed(self.data)
        mail["Message-ID"] = self.message_id(effect_key)
        if self.hidden:
            mail["Bcc"] = ", ".join(self.hidden)
        return self.via.create(mail, effect_key)

    def _remove_others(self, effect_key: str, found: FoundMails) -> None:
        """Remove drafts left by attempts whose answers were lost. If the mailbox refuses, they stay."""
        others = found.drafts if found.sent else found.drafts[1:]
        try:
            for draft in others:
                self.via.remove(draft)
        except (NotDone, OutcomeUnknown) as error:
            log.warning("%s was sent, and a draft of it could not be removed: %s", self.name, error)

    def look(self, effect_key: str) -> Look:
        try:
            found = self._find(effect_key)
        except (NotDone, OutcomeUnknown, LookupError, TypeError) as error:
            return Unknown(f"the mailbox at {self.via.api.host} cannot be searched ({_one_line(error)})", failed=True)
        if len(found.sent) > 1:
            return Unknown.several(found.sent, "the mailbox")
        return Happened(SentMail(self.message_id(effect_key))) if found.sent else Absent()


# -- messages ------------------------------------------------------------------------------------------


def _addresses(message: EmailMessage, names: Sequence[str]) -> list[str]:
    given = [str(value) for name in names for value in message.get_all(name, [])]
    return list(dict.fromkeys(address for _, address in getaddresses(given) if address))


def _settled(message: EmailMessage) -> bytes:
    """Return the message as it is sent: without Bcc, and with the same MIME boundaries at every attempt."""
    copy = deepcopy(message)
    for name in ("Bcc", *VARYING):
        del copy[name]
    for number, part in enumerate(copy.walk()):
        if part.is_multipart():
            parts = sha256(b"".join(str(one.get_payload()).encode() for one in part.walk() if not one.is_multipart()))
            part.set_boundary(f"=_{number}_{parts.hexdigest()[:32]}")
    return copy.as_bytes(policy=SMTP.clone(utf8=True))


def _parsed(data: bytes) -> EmailMessage:
    from email import message_from_bytes, policy

    return message_from_bytes(data, policy=policy.default)


# -- the sent folder -----------------------------------------------------------------------------------


def imap(
    host: str,
    *,
    user: str,
    password: Secret,
    port: int = 993,
    folder: str = "",
    copies: bool | None = None,
    settling: str | float = COPY_TIME,
    tls: bool = True,
    timeout: float = 30.0,
    context: ssl.SSLContext | None = None,
) -> ImapFolder:
    """Return the folder of sent mails, to look for a mail of unknown outcome.

    Args:
        host: The IMAP server.
        user: The account that mails are sent from.
        password: Its password.
        port: The server's port.
        folder: The folder's name as the server lists it; by default the one that is marked as `\\Sent`.
        copies: Whether the account keeps a copy of each mail sent by SMTP. By default that is believed once a mail of
            ours is found in the folder; until then a mail that is not there may have been sent.
        settling: How long a copy may take to appear.
        tls: Whether the connection is encrypted from its beginning.
        timeout: How long one answer may take.
        context: The TLS context, for a private certificate authority.
    """
    if not folder.isascii() or '"' in folder or "\\" in folder or not folder.isprintable():
        raise Misuse("A folder is named as the server lists it (modified UTF-7); ask the server with LIST.")
    wait = seconds(settling, name="settling", positive=False)
    return ImapFolder(host, user, password, port, folder, copies, wait, tls, timeout, context)


_keeps_copies: set[tuple[str, int, str, str]] = set()  # accounts in whose folder a mail of ours was found


class ImapFolder(Struct, frozen=True):
    """`imap(…)`. It only reads: the folder is opened by EXAMINE."""

    host: str
    user: str
    password: Secret
    port: int
    folder: str
    copies: bool | None
    settling: float
    tls: bool
    timeout: float
    context: ssl.SSLContext | None

    def __repr__(self) -> str:
        return f"imap({self.host!r}, user={self.user!r})"

    def find(self, message_id: str) -> Look:
        """Search for a mail. Unknown if the folder does not tell."""
        try:
            with self._opened() as server:
                found = _search(server, message_id)
                if len(found) == 1:
                    return Happened(SentMail(message_id))
                if found:
                    return Unknown.several((f"UID {one.decode()}" for one in found), "the sent folder")
                return self._not_found(server)
        except (OSError, imaplib.IMAP4.error) as error:
            return Unknown(f"the sent folder at {self.host} cannot be searched ({_one_line(error)})", failed=True)

    def _not_found(self, server: imaplib.IMAP4) -> Absent | Unknown:
        if self._keeps_copies(server):
            return Absent()
        return Unknown(
            "it is not in the sent folder, and no mail of ours is: the account may not keep copies. If it does, say "
            "mail.imap(…, copies=True)"
        )

    def _keeps_copies(self, server: imaplib.IMAP4) -> bool:
        if self.copies is not None:
            return self.copies
        account = self.host, self.port, self.user, self.folder
        if account not in _keeps_copies and _search(server, f"<{OURS}"):
            _keeps_copies.add(account)
        return account in _keeps_copies

    @contextmanager
    def _opened(self) -> Iterator[imaplib.IMAP4]:
        server: imaplib.IMAP4
        if self.tls:
            context = self.context or ssl.create_default_context()
            server = imaplib.IMAP4_SSL(self.host, self.port, ssl_context=context, timeout=self.timeout)
        else:
            server = imaplib.IMAP4(self.host, self.port, timeout=self.timeout)
        try:
            server.login(self.user, secrets_of(self.password)[0])
            name = self.folder or _sent_folder(server)
            answer, said = server.select(f'"{name}"', readonly=True)
            if answer != "OK":
                raise imaplib.IMAP4.error(f"the folder {name}: {said}")
            yield server
        finally:
            _logout(server)


_LISTED = re.compile(rb'\((?P<flags>[^)]*)\) (?:"[^"]*"|NIL) (?:"(?P<quoted>[^"]*)"|(?P<bare>\S+))')


def _sent_folder(server: imaplib.IMAP4) -> str:
    """The folder that is marked as `\\Sent` (RFC 6154), or else `Sent`."""
    for line in server.list()[1]:
        found = _LISTED.match(line) if isinstance(line, bytes) else None
        if found and b"\\sent" in found["flags"].lower().split():
            return str((found["quoted"] or found["bare"]).decode("ascii"))
    return "Sent"


def _search(server: imaplib.IMAP4, text: str) -> list[bytes]:
    answer, found = server.uid("SEARCH", "HEADER", "Message-ID", f'"{text}"')
    if answer != "OK":
        raise imaplib.IMAP4.error(f"the search was refused: {found}")
    return b" ".join(one for one in found if one).split()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _logout(server: imaplib.IMAP4) -> None:
    try:
        server.logout()
    except (OSError, imaplib.IMAP4.error):
        server.shutdown()
