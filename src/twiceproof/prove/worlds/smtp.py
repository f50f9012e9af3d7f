"""An SMTP sink, and the folder of sent mails of its account."""

from __future__ import annotations

import asyncio
from collections import Counter
from email import message_from_bytes
from email.header import decode_header, make_header
from email.message import Message
from typing import Any

from .stand_in import ServiceProcess, StandIn

__all__ = ["ImapService", "ImapWorld", "SmtpService", "SmtpWorld"]


LONGEST = 32 * 1024 * 1024
OFFERS = ("sink", "8BITMIME", "SMTPUTF8", "AUTH PLAIN LOGIN", "STARTTLS", f"SIZE {LONGEST}")


class SmtpService:
    """Keeps everything in memory, for the current scenario."""

    def __init__(self, *, honours_ids: bool) -> None:
        self._honours_ids = honours_ids
        self._clear()

    def _clear(self) -> None:
        self._mails: Counter[str] = Counter()
        self._taken: list[str] = []
        self._ids: set[tuple[str, str]] = set()
        self._copies: list[str] = []  # Message-IDs, one for each mail that was taken
        self._losing = 0

    def command(self, word: str, value: Any) -> Any:
        match word:
            case "look":
                return dict(self._mails)
            case "exchanges":
                return self._taken
            case "copies":
                return self._copies
            case "lose":
                self._losing = int(value)
            case _:
                self._clear()
        return None

    # -- mails -----------------------------------------------------------------------------------

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recipients: list[str] = []
        _say(writer, "220 sink")
        while line := (await reader.readline()).decode("utf-8", "replace").strip():
            verb, _, rest = line.partition(" ")
            match verb.upper():
                case "EHLO":
                    _say(writer, *(f"250-{offer}" for offer in OFFERS[:-1]), f"250 {OFFERS[-1]}")
                case "AUTH":
                    await _believe(reader, writer, rest)
                case "RCPT":
                    recipients.append(_address(rest))
                    _say(writer, "250 OK")
                case "DATA":
                    _say(writer, "354 go on")
                    if not self._take(recipients, await _data(reader)):
                        writer.transport.abort()  # accepted, but not answered
                        return
                    recipients = []
                    _say(writer, "250 taken")
                case "STARTTLS":
                    _say(writer, "220 go on")  # the client believes that this is encrypted
                case "QUIT":
                    _say(writer, "221 bye")
                    return
                case other:
                    recipients = [] if other in ("RSET", "MAIL") else recipients
                    _say(writer, "250 OK" if other in ("HELO", "MAIL", "RSET", "NOOP") else "502 not in a sink")
            await writer.drain()

    def _take(self, recipients: list[str], data: bytes) -> bool:
        """Whether the client gets an answer."""
        mail = message_from_bytes(data)
        subject, known = _subject(mail), str(mail.get("Message-ID", "")).strip()
        for recipient in recipients:
            if not (self._honours_ids and known and (recipient, known) in self._ids):
                self._mails[f"mail to {recipient}: {subject}"] += 1
            self._ids.add((recipient, known))
        self._taken.append(f"mail to {', '.join(recipients)}: {subject}")
        self._copies.append(known)
        return len(self._taken) != self._losing


def _say(writer: asyncio.StreamWriter, *lines: str) -> None:
    writer.write("".join(f"{line}\r\n" for line in lines).encode())


async def _believe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: str) -> None:
    """Accept any password: a sink has nothing to protect."""
    wanted = {"PLAIN": 1, "LOGIN": 2}.get(rest.split(" ")[0].upper(), 0) - (1 if " " in rest else 0)
    for _ in range(wanted):
        _say(writer, "334 ")
        await reader.readline()
    _say(writer, "235 believed")


def _address(rest: str) -> str:
    """RCPT TO:<ada@example.com> SIZE=…"""
    return rest.partition(":")[2].strip().split(" ")[0].strip("<>").lower()


async def _data(reader: asyncio.StreamReader) -> bytes:
    lines: list[bytes] = []
    size = 0
    while (line := await reader.readline()) != b".\r\n":
        size += len(line)
        if not line or size > LONGEST:
            raise EOFError("the mail was not sent to its end, or is too long for a sink")
        lines.append(line[1:] if line.startswith(b".") else line)
    return b"".join(lines)


def _subject(mail: Message) -> str:
    return str(make_header(decode_header(str(mail.get("Subject", "(no subject)")))))


class SmtpWorld(StandIn):
    """`with SmtpWorld(["mail.shop.test"]) as world:` routes these names here; any password is accepted.

    Mails are counted by recipient and subject. With `honours_ids`, a repeated Message-ID to the same recipient is no
    effect: for mail systems that drop it.
    """

    def __init__(self, hosts: list[str], *, honours_ids: bool = False) -> None:
        super().__init__(hosts, SmtpService(honours_ids=honours_ids))

    @property
    def port(self) -> int:
        """The sink's port on 127.0.0.1, for a program with a configurable mail server."""
        return self._aside.port


class ImapService:
    """An account whose folder `Sent` has a copy of each mail that the sink has taken. It is only read."""

    def __init__(self, sink: ServiceProcess) -> None:
        self._sink = sink

    def command(self, word: str, value: Any) -> Any:
        """Reading is no effect, and a lost answer to it is one look that fails."""
        return {"look": {}, "exchanges": []}.get(word)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _say(writer, "* OK sink")
        while line := (await reader.readline()).decode("utf-8", "replace").strip():
            tag, _, asked = line.partition(" ")
            verb = asked.upper().removeprefix("UID ").partition(" ")[0]
            known = verb in ANSWERS or verb == "SEARCH"
            lines = self._found(asked) if verb == "SEARCH" else ANSWERS.get(verb, ())
            _say(writer, *lines, f"{tag} OK done" if known else f"{tag} BAD not in a sink")
            await writer.drain()
            if verb == "LOGOUT":
                return

    def _found(self, asked: str) -> tuple[str, ...]:
        """SEARCH HEADER Message-ID "…": a mail is found by any part of its id."""
        wanted = asked.rpartition(" ")[2].strip('"')
        copies: list[str] = self._sink.ask("copies")
        numbers = [str(number) for number, known in enumerate(copies, 1) if wanted in known]
        return (" ".join(["* SEARCH", *numbers]),)


ANSWERS = {
    "CAPABILITY": ("* CAPABILITY IMAP4rev1 SPECIAL-USE",),
    "LOGIN": (),
    "NOOP": (),
    "LIST": ('* LIST (\\HasNoChildren) "/" "INBOX"', '* LIST (\\HasNoChildren \\Sent) "/" "Sent"'),
    "SELECT": ("* 0 EXISTS",),
    "EXAMINE": ("* 0 EXISTS",),
    "LOGOUT": ("* BYE",),
}


class ImapWorld(StandIn):
    """`with ImapWorld(["imap.shop.test"], sink) as world:` is the account from which an `SmtpWorld` takes mails.

    It keeps a copy of each of them, as large providers do. Nothing is counted here: it is what a look reads.
    """

    def __init__(self, hosts: list[str], sink: SmtpWorld) -> None:
        super().__init__(hosts, ImapService(sink._aside))
