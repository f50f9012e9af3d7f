"""Delivers one mail to an SMTP server, and tells which failures leave the outcome unknown. A mail is handed over with
the line that holds a single dot (RFC 5321, section 6.1).

If something fails before that line is sent, nothing was sent; if no answer comes after it, the mail may be on its way.
So the body and the dot are sent separately, and the dot only while there is time left.

`smtplib` of the standard library is used: it blocks, as every effect does on its own thread, and needs no extra.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from typing import Literal, NoReturn

from msgspec import Struct

from ..errors import Misuse, NotDone, OutcomeUnknown
from ..secret import Secret, secrets_of
from .base import preparing

__all__ = ["SmtpServer", "Tls", "smtp"]

Tls = Literal["starttls", "tls", "none"]
GO_AHEAD, TAKEN, TAKEN_WELL = 354, 250, (250, 251)
PATIENCE = 5.0  # seconds
LONGEST = 200  # characters of a server's answer in a message


def smtp(
    host: str,
    *,
    port: int = 587,
    user: str = "",
    password: Secret = "",
    tls: Tls = "starttls",
    timeout: float = 60.0,
    context: ssl.SSLContext | None = None,
    now: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> SmtpServer:
    """Return a mail server to send by. Use `tls="none"` only for one on the same machine or network.

    `timeout` covers a whole mail: after it nothing more is handed over.
    """
    if tls not in ("starttls", "tls", "none"):
        raise Misuse(f'tls={tls!r} is not known; use "starttls", "tls" or "none".')
    if user and tls == "none":
        raise Misuse('A password must not be sent unencrypted; use tls="starttls" or "tls".')
    return SmtpServer(host, port, user, password, tls, timeout, context, now, monotonic)


class SmtpServer(Struct, frozen=True):
    """A mail server and its login. `deliver` sends one mail in one transaction."""

    host: str
    port: int
    user: str
    password: Secret
    tls: Tls
    timeout: float
    context: ssl.SSLContext | None
    now: Callable[[], float]
    monotonic: Callable[[], float]

    def __repr__(self) -> str:
        return f"smtp({self.host!r}, user={self.user!r})"

    def deliver(self, mail: EmailMessage, sender: str, people: Sequence[str]) -> dict[str, str]:
        """Send a mail, and return the recipients that the server refused, each with its answer.

        Raise NotDone if no recipient got it, OutcomeUnknown if no answer came after the mail was handed over.
        """
        deadline = self.monotonic() + self.timeout
        with self._session(deadline) as server:
            utf8 = _needs_utf8(mail, sender, people)
            if utf8 and not server.has_extn("smtputf8"):
                self._refuse("it cannot send to addresses with letters outside ASCII", final=True)
            refused = self._envelope(server, sender, people, utf8=utf8)
            self._body(server, mail.as_bytes(policy=SMTPUTF8 if utf8 else SMTP), deadline)
            self._hand_over(server)
        return refused

    @contextmanager
    def _session(self, deadline: float) -> Iterator[smtplib.SMTP]:
        """Open a connection and log in. Until the dot is sent, every error means that nothing was sent."""
        try:
            server = self._connected()
            if server.sock is not None:  # or the dot waits for the server's ACK of the body, some 40 ms
                server.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:  # includes smtplib's own errors
            self._refuse(f"it is not available ({_said(error)})", error)
        try:
            if self.user:
                with preparing(f"the mail by {self.host}"):
                    password = secrets_of(self.password)[0]
                server.login(self.user, password)
            yield server
        except OSError as error:
            self._refuse(_said(error), error, final=isinstance(error, smtplib.SMTPNotSupportedError))
        finally:
            _quit(server)

    def _connected(self) -> smtplib.SMTP:
        if self.tls == "tls":
            return smtplib.SMTP_SSL(self.host, self.port, timeout=self.timeout, context=self._certificates())
        server = smtplib.SMTP(self.host, self.port, timeout=self.timeout)
        try:
            if self.tls == "starttls":
                server.starttls(context=self._certificates())
            server.ehlo_or_helo_if_needed()
        except BaseException:
            server.close()
            raise
        return server

    def _certificates(self) -> ssl.SSLContext:
        return self.context or ssl.create_default_context()

    def _envelope(self, server: smtplib.SMTP, sender: str, people: Sequence[str], *, utf8: bool) -> dict[str, str]:
        code, answer = server.mail(sender, ["SMTPUTF8", "BODY=8BITMIME"] if utf8 else [])
        if code != TAKEN:
            self._refuse(f"the sender {sender} is refused ({_line(code, answer)})", final=_is_final(code))
        refused: dict[str, str] = {}
        codes = []
        for person in people:
            code, answer = server.rcpt(person)
            if code not in TAKEN_WELL:
                refused[person] = _line(code, answer)
                codes.append(code)
        if len(refused) == len(people):
            told = "; ".join(f"{person}: {why}" for person, why in refused.items())
            self._refuse(f"all recipients are refused ({told})", final=all(map(_is_final, codes)))
        return refused

    def _body(self, server: smtplib.SMTP, data: bytes, deadline: float) -> None:
        code, answer = server.docmd("DATA")
        if code != GO_AHEAD:
            self._refuse(f"the mail is refused ({_line(code, answer)})", final=_is_final(code))
        server.send(re.sub(rb"(?m)^\.", b"..", data if data.endswith(b"\r\n") else data + b"\r\n"))
        if self.monotonic() >= deadline:
            server.close()  # without the dot: the server discards what it got
            self._refuse(f"it took more than {self.timeout:g} s")

    def _hand_over(self, server: smtplib.SMTP) -> None:
        """Send the dot. From here on the mail may be delivered, whether or not an answer comes."""
        try:
            server.send(b".\r\n")
            code, answer = server.getreply()
        except OSError as error:
            raise OutcomeUnknown(
                f"the mail server {self.host} did not confirm the mail ({_said(error)}); it may have been sent. Look "
                "into the folder of sent mails."
            ) from error
        if code != TAKEN:
            self._refuse(f"the mail is refused ({_line(code, answer)})", final=_is_final(code))

    def _refuse(self, why: str, error: OSError | None = None, *, final: bool = False) -> NoReturn:
        raise NotDone(f"the mail server {self.host}: {why}; nothing was sent.", final=final) from error


def _needs_utf8(mail: EmailMessage, sender: str, people: Sequence[str]) -> bool:
    """Whether an address cannot be written in ASCII. Names and subjects can: they are encoded."""
    headers = [str(value) for name in ("From", "To", "Cc", "Reply-To") for value in mail.get_all(name, [])]
    addresses = [address for header in headers for address in re.findall(r"\S+@\S+", header)]
    return not all(address.isascii() for address in (sender, *people, *addresses))


def _is_final(code: int) -> bool:
    return 500 <= code < 600


def _line(code: int, answer: bytes) -> str:
    return f"{code} {' '.join(answer.decode('utf-8', 'replace').split())}"[:LONGEST].strip()


def _said(error: OSError) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error
        return _line(error.smtp_code, text if isinstance(text, bytes) else text.encode())
    return " ".join(str(error).split())[:LONGEST] or type(error).__name__


def _quit(server: smtplib.SMTP) -> None:
    try:
        if server.sock is not None:
            server.sock.settimeout(PATIENCE)  # the mail has been sent or refused; QUIT is only a courtesy
            server.quit()
    except OSError:
        pass
    finally:
        server.close()
