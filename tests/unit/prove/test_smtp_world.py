"""The sink: takes mails from a real client, and counts them by whom they went to."""

from __future__ import annotations

import imaplib
import smtplib
import socket
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

import pytest

from twiceproof import Absent, App, Happened, OutcomeUnknown, Unknown
from twiceproof.effects import mail
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.worlds.smtp import ImapWorld, SmtpWorld

HELLO = "mail to ada@example.com: Grüße, Ada"


@pytest.fixture
def world() -> Iterator[SmtpWorld]:
    with SmtpWorld(["mail.shop.test", "localhost:25"]) as world:
        yield world


def send(host: str = "mail.shop.test", *, message_id: str = "<1@shop>", login: bool = False) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"] = "shop@example.com", "Ada@example.com, bob@example.com"
    mail["Subject"], mail["Message-ID"] = "Grüße, Ada", message_id
    mail.set_content("Dear Ada,\n.\nyours\n")
    with smtplib.SMTP(host, timeout=5) as client:
        if login:
            client.login("shop", "secret")
        client.send_message(mail)


@pytest.mark.parametrize("host", ["mail.shop.test", "localhost"])
def test_a_mail_is_counted_for_each_who_gets_it(world: SmtpWorld, host: str) -> None:
    send(host)
    assert world.look() == {HELLO: 1, "mail to bob@example.com: Grüße, Ada": 1}
    send(host, login=True)
    assert world.look()[HELLO] == 2
    world.reset()
    assert (world.look(), world.exchanges()) == ({}, [])


def test_tls_is_met_from_the_start_and_in_mid_sentence(world: SmtpWorld) -> None:
    with smtplib.SMTP_SSL("mail.shop.test", timeout=5) as client:
        client.login("shop", "secret")
        client.sendmail("shop@test", ["ada@test"], "Subject: sealed\n\nDear Ada")
    with smtplib.SMTP("mail.shop.test", 587, timeout=5) as client:
        client.starttls()
        client.login("shop", "secret")
        client.sendmail("shop@test", ["ada@test"], "Subject: then sealed\n\nDear Ada")
    assert world.look() == {"mail to ada@test: sealed": 1, "mail to ada@test: then sealed": 1}


def test_a_mail_that_was_not_sent_to_its_end_is_none(world: SmtpWorld) -> None:
    with socket.create_connection(("127.0.0.1", world.port), timeout=5) as link:
        for line in (b"EHLO x", b"MAIL FROM:<a@b>", b"RCPT TO:<c@d>", b"DATA"):
            link.sendall(line + b"\r\n")
            link.recv(1_000)
        link.sendall(b"Subject: half\r\n\r\nDear")
    send()
    assert list(world.look().values()) == [1, 1]


def test_a_repeated_message_id_is_no_effect_where_the_mail_system_drops_it() -> None:
    with SmtpWorld(["mail.shop.test"], honours_ids=True) as world:
        send()
        send()
        assert world.look()[HELLO] == 1
        send(message_id="<2@shop>")
        assert world.look()[HELLO] == 2


def test_an_answer_can_be_lost_when_the_mail_was_taken(world: SmtpWorld) -> None:
    world.lose(1)
    with pytest.raises(smtplib.SMTPServerDisconnected):
        send()
    assert world.look()[HELLO] == 1


app = App("memory://")
app.classify(smtplib.SMTPServerDisconnected, "ambiguous")  # it may have gone out


@app.step(repeat="safe")
def mail_again() -> None:
    send()


@app.step(repeat="never")
def mail_once() -> None:
    send()


@app.flow(key="hello:{order[id]}")
def careless(order: dict[str, Any]) -> None:
    mail_again()


@app.flow(key="hello:{order[id]}")
def careful(order: dict[str, Any]) -> None:
    mail_once()


@pytest.mark.slow
def test_a_mail_that_is_sent_again_is_found_and_one_that_is_not_is_safe(world: SmtpWorld) -> None:
    with pytest.raises(NotSafe) as caught:
        prove(careless, {"id": 1}, world=world, depth=1)
    assert caught.value.report.bad[0].extra[HELLO] == 1
    assert prove(careful, {"id": 1}, world=world, depth=1).good


# -- the folder of sent mails --------------------------------------------------------------------


def sending(**folder: Any) -> mail.MailSending:
    found = mail.imap("imap.shop.test", user="shop", password="any", **folder)
    message = mail.message(sender="shop@shop.test", to="ada@example.com", subject="Hello", text="Dear Ada")
    return mail.send(message, via=mail.smtp("mail.shop.test"), look=found)


def test_what_the_sink_took_is_in_the_folder_of_sent_mails(world: SmtpWorld) -> None:
    with ImapWorld(["imap.shop.test"], world) as folder:
        assert isinstance(sending().look("tp_1"), Unknown)  # no mail of ours was ever there
        sending().perform("tp_1")
        assert isinstance(sending().look("tp_1"), Happened)
        assert isinstance(sending(copies=True).look("tp_2"), Absent)
        sending().perform("tp_1")
        assert isinstance(sending().look("tp_1"), Unknown)  # two copies
        world.reset()
        assert isinstance(sending(copies=True).look("tp_1"), Absent)
        assert (folder.look(), folder.exchanges()) == ({}, [])


def test_a_mail_whose_answer_is_lost_is_found_there(world: SmtpWorld) -> None:
    with ImapWorld(["imap.shop.test"], world):
        world.lose(1)
        with pytest.raises(OutcomeUnknown):
            sending().perform("tp_1")
        assert isinstance(sending().look("tp_1"), Happened)


def test_a_command_that_the_folder_does_not_know_is_refused(world: SmtpWorld) -> None:
    with ImapWorld(["imap.shop.test"], world), imaplib.IMAP4("imap.shop.test", timeout=5) as client:
        client.login("shop", "any")
        client.select("Sent")
        with pytest.raises(imaplib.IMAP4.error, match="not in a sink"):
            client.store("1", "+FLAGS", "\\Deleted")
