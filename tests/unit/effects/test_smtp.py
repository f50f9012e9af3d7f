"""One mail to a mail server: what is certain when something fails, at every stage of the transaction."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

import pytest

from tests.servers.address import closed_port
from tests.unit.effects.mailbox import mailbox
from twiceproof import Misuse, NotDone, OutcomeUnknown, env
from twiceproof.effects.smtp import SmtpServer, smtp

STAGES = ("connected", "EHLO", "MAIL", "RCPT", "DATA")
TO = ["bob@shop.io", "eve@shop.io"]


def mail(**headers: str) -> EmailMessage:
    made = EmailMessage()
    for name, value in {"From": "ada@shop.io", "To": ", ".join(TO), "Subject": "Hello", **headers}.items():
        made[name] = value
    made.set_content("first line\n.second line begins with a dot\n..third\n")
    return made


def plain(port: int, **options: Any) -> SmtpServer:
    return smtp("127.0.0.1", port=port, tls="none", **options)


class ScriptedSmtp:
    """An SMTP server of ours, for one mail, that hangs up at one stage."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.taken: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._listener, self._listener.accept()[0] as peer, peer.makefile("rb") as lines:
            self._talk(peer, lines)

    def _talk(self, peer: socket.socket, lines: Any) -> None:
        if self.stage == "connected":
            return
        peer.sendall(b"220 here\r\n")
        for line in lines:
            verb = line.decode().split()[0].upper()
            if verb == self.stage:
                return
            peer.sendall(b"354 go on\r\n" if verb == "DATA" else b"250 OK\r\n")
            if verb == "DATA":
                break
        body = []
        for line in lines:
            if self.stage == "body":
                return
            if line == b".\r\n":
                self.taken = body  # it is theirs now, and the answer is lost
            body.append(line.decode())
            if self.taken:
                return

    def end(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def hanging_up(stage: str) -> Iterator[ScriptedSmtp]:
    server = ScriptedSmtp(stage)
    try:
        yield server
    finally:
        server.end()


def test_the_dot_does_not_wait_for_the_servers_delayed_acknowledgement_of_the_body() -> None:
    with mailbox() as (_, port), plain(port)._session(float("inf")) as server:
        assert server.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_that_hangs_up_before_the_final_dot_got_nothing(stage: str) -> None:
    with hanging_up(stage) as server, pytest.raises(NotDone, match="nothing was sent"):
        plain(server.port).deliver(mail(), "ada@shop.io", TO)
    assert server.taken == []


def test_a_server_that_hangs_up_within_the_mail_never_counts_as_having_sent_it() -> None:
    """The client may notice only after it has sent the dot: then it is in doubt, which is the safe side."""
    with hanging_up("body") as server, pytest.raises((NotDone, OutcomeUnknown)):
        plain(server.port).deliver(mail(), "ada@shop.io", TO)
    assert server.taken == []


def test_a_server_that_hangs_up_after_the_final_dot_may_have_sent_the_mail() -> None:
    with hanging_up("dot") as server, pytest.raises(OutcomeUnknown, match="may have been sent"):
        plain(server.port).deliver(mail(), "ada@shop.io", TO)
    assert "first line\r\n" in server.taken


def test_the_final_dot_is_not_sent_when_the_time_is_over() -> None:
    ticks = iter([0.0, 61.0])
    with hanging_up("dot") as server, pytest.raises(NotDone, match="more than 60 s"):
        plain(server.port, monotonic=lambda: next(ticks)).deliver(mail(), "ada@shop.io", TO)
    assert server.taken == []


def test_lines_that_begin_with_a_dot_arrive_as_they_are() -> None:
    with mailbox() as (box, port):
        assert plain(port).deliver(mail(), "ada@shop.io", TO) == {}
    assert box.envelopes == [("ada@shop.io", TO)]
    assert box.mails[0].get_content().replace("\r", "") == "first line\n.second line begins with a dot\n..third\n"


def test_a_refused_recipient_is_reported_and_the_other_gets_the_mail() -> None:
    with mailbox(refuses={"eve@shop.io": "550 no such user"}) as (box, port):
        assert plain(port).deliver(mail(), "ada@shop.io", TO) == {"eve@shop.io": "550 no such user"}
    assert box.envelopes == [("ada@shop.io", ["bob@shop.io"])]


@pytest.mark.parametrize(("code", "final"), [("450 later", False), ("550 never", True)])
def test_when_all_recipients_are_refused_nothing_is_sent(code: str, final: bool) -> None:
    with mailbox(refuses=dict.fromkeys(TO, code)) as (box, port), pytest.raises(NotDone, match=code) as caught:
        plain(port).deliver(mail(), "ada@shop.io", TO)
    assert box.mails == []
    assert caught.value.data.get("final", False) is final


def test_a_recipient_who_may_come_later_keeps_the_refusal_open() -> None:
    refuses = {"bob@shop.io": "550 never", "eve@shop.io": "450 later"}
    with mailbox(refuses=refuses) as (_, port), pytest.raises(NotDone) as caught:
        plain(port).deliver(mail(), "ada@shop.io", TO)
    assert "final" not in caught.value.data


@pytest.mark.parametrize(("says", "final"), [("452 disk is full", False), ("554 looks like spam", True)])
def test_a_mail_refused_after_the_final_dot_was_not_sent(says: str, final: bool) -> None:
    with mailbox(says=says) as (_, port), pytest.raises(NotDone, match=says) as caught:
        plain(port).deliver(mail(), "ada@shop.io", TO)
    assert caught.value.data.get("final", False) is final


def test_a_server_that_is_not_there_got_nothing() -> None:
    with closed_port() as port, pytest.raises(NotDone, match="not available"):
        plain(port).deliver(mail(), "ada@shop.io", TO)


def test_a_login_that_the_server_does_not_offer_sends_nothing() -> None:
    with mailbox() as (box, port), pytest.raises(NotDone):
        smtp("127.0.0.1", port=port, user="me", password="pw").deliver(mail(), "ada@shop.io", TO)
    assert box.mails == []


def test_an_address_outside_ascii_is_sent_where_the_server_takes_it() -> None:
    with mailbox() as (box, port):
        plain(port).deliver(mail(To="zoë@shop.io"), "ada@shop.io", ["zoë@shop.io"])
    assert box.envelopes[0][1] == ["zoë@shop.io"]
    with hanging_up("dot") as server, pytest.raises(NotDone, match="outside ASCII") as caught:
        plain(server.port).deliver(mail(), "ada@shop.io", ["zoë@shop.io"])
    assert caught.value.data["final"] is True


def test_a_password_is_neither_sent_in_clear_nor_shown() -> None:
    with pytest.raises(Misuse, match="unencrypted"):
        smtp("mail.shop.io", user="me", password="pw", tls="none")
    with pytest.raises(Misuse, match="starttls"):
        smtp("mail.shop.io", tls="sometimes")  # type: ignore[arg-type]
    for password in ("canary", env("SMTP_PASSWORD")):
        assert repr(smtp("mail.shop.io", user="me", password=password)) == "smtp('mail.shop.io', user='me')"
