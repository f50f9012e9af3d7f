"""Mails sent once, by aiosmtpd and looked for in Dovecot: real servers both."""

from __future__ import annotations

from email.message import EmailMessage
from typing import Any

import pytest

from tests.servers.address import closed_port
from tests.servers.dovecot import Dovecot
from tests.unit.effects.mailbox import Mailbox, mailbox
from tests.unit.flows.stage import Died, Stage
from twiceproof import Absent, Happened, Misuse, NeedsReview, OutcomeUnknown, Unknown, Waiting
from twiceproof.effects import mail
from twiceproof.effects.base import Effect, outgoing_headers
from twiceproof.effects.repeat import NEVER

KEY = "tp_" + "0f" * 16
SENDER = "shop@example.org"


def welcome(**more: str) -> EmailMessage:
    return mail.message(sender=f"The shop <{SENDER}>", to="ada@example.org", subject="Wëlcome", text="Hello", **more)


def by(port: int) -> mail.smtp:  # type: ignore[valid-type]
    return mail.smtp("127.0.0.1", port=port, tls="none")


def sent_folder(server: Dovecot, user: str, **options: object) -> mail.ImapFolder:
    where = {"port": server.port, "user": user, "password": server.password, "tls": False, **options}
    return mail.imap(server.host, **where)  # type: ignore[arg-type]


def stored(key: str = KEY) -> EmailMessage:
    copy = welcome()
    copy["Message-ID"] = f"<{key}@example.org>"
    return copy


# -- sending -----------------------------------------------------------------------------------------


def test_a_mail_carries_the_effect_key_and_leads_back_to_its_run() -> None:
    token = outgoing_headers.set({"correlation-id": "order-17", "traceparent": "00-1-2-03"})
    try:
        with mailbox() as (box, port):
            sent = mail.send(welcome(html="<p>Hello</p>"), via=by(port)).perform(KEY)
    finally:
        outgoing_headers.reset(token)
    (arrived,) = box.mails
    assert sent == mail.SentMail(f"<{KEY}@example.org>", {})
    assert arrived["Message-ID"] == sent.message_id
    assert (arrived["correlation-id"], arrived["traceparent"]) == ("order-17", "00-1-2-03")
    assert (arrived["Subject"], arrived["Date"] is not None) == ("Wëlcome", True)
    assert [part.get_content().strip() for part in arrived.iter_parts()] == ["Hello", "<p>Hello</p>"]


def test_blind_copies_get_the_mail_and_are_not_named_in_it() -> None:
    message = welcome(cc="bob@example.org")
    message["Bcc"] = "eve@example.org"
    with mailbox() as (box, port):
        mail.send(message, via=by(port)).perform(KEY)
    assert box.envelopes == [(SENDER, ["ada@example.org", "bob@example.org", "eve@example.org"])]
    assert "eve" not in str(box.mails[0])
    assert message["Bcc"] == "eve@example.org"  # the caller's message stays as it is


def test_a_refused_recipient_is_part_of_the_result() -> None:
    with mailbox(refuses={"bob@example.org": "550 no"}) as (_, port):
        sent = mail.send(welcome(cc="bob@example.org"), via=by(port)).perform(KEY)
    assert sent.refused == {"bob@example.org": "550 no"}


def test_the_same_message_made_again_has_the_same_description() -> None:
    def described(text: str, date: str) -> dict[str, object]:
        message = welcome(html=text)
        message["Date"] = date
        message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="terms.pdf")
        return mail.send(message, via=by(1)).describe()

    assert described("<p>Hi</p>", "Mon, 2 Nov 2026") == described("<p>Hi</p>", "Tue, 3 Nov 2026")
    assert described("<p>Hi</p>", "Mon, 2 Nov 2026") != described("<p>Ho</p>", "Mon, 2 Nov 2026")


def test_a_mail_is_never_repeated_blindly_and_is_checked_where_there_is_a_folder() -> None:
    assert mail.send(welcome(), via=by(1)).repeat == NEVER
    assert isinstance(mail.send(welcome(), via=by(1)).look(KEY), Unknown)
    folder = mail.imap("imap.example.org", user="shop", password="pw")
    declared = mail.send(welcome(), via=by(1), look=folder).repeat
    assert (declared.kind, declared.settling) == ("check", 120.0)  # time to send, and to store the copy


@pytest.mark.parametrize("broken", ["no sender", "no recipient", "an id", "a text"])
def test_what_cannot_be_sent_is_refused_when_it_is_made(broken: str) -> None:
    message: object = welcome()
    assert isinstance(message, EmailMessage)
    if broken == "an id":
        message["Message-ID"] = "<mine@example.org>"
    elif broken == "a text":
        message = "Hello"
    else:
        del message["From" if broken == "no sender" else "To"]
    with pytest.raises(Misuse):
        mail.send(message, via=by(1))  # type: ignore[arg-type]


@pytest.mark.parametrize(("option", "move"), [("via", "mail.smtp"), ("look", "mail.imap")])
def test_a_host_alone_is_no_server_to_send_by_or_to_look_at(option: str, move: str) -> None:
    folder = mail.imap("imap.example.org", user="shop", password="canary")
    given: dict[str, Any] = {"via": by(1), "look": folder}
    assert "canary" not in repr(mail.send(welcome(), **given))
    with pytest.raises(Misuse, match=move):
        mail.send(welcome(), **(given | {option: "mail.example.org"}))


# -- looking -----------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_mail_without_an_answer_is_found_in_the_sent_folder(dovecot: Dovecot) -> None:
    with mailbox(says="") as (box, port):
        effect = mail.send(welcome(), via=by(port), look=sent_folder(dovecot, "lost"))
        with pytest.raises(OutcomeUnknown):
            effect.perform(KEY)
    dovecot.store("lost", box.mails[0].as_bytes())  # as the provider does
    assert effect.look(KEY) == Happened(mail.SentMail(f"<{KEY}@example.org>"))


@pytest.mark.server
def test_a_mail_that_is_not_there_is_absent_only_where_copies_are_kept(dovecot: Dovecot) -> None:
    look = mail.send(welcome(), via=by(1), look=sent_folder(dovecot, "copies")).look
    assert "may not keep copies" in str(look(KEY))
    dovecot.store("copies", b"From: someone\r\nMessage-ID: <1@example.org>\r\n\r\nby hand\r\n")
    assert isinstance(look(KEY), Unknown)  # a mail that a person sent by another program tells nothing
    dovecot.store("copies", stored("tp_" + "11" * 16))
    assert look(KEY) == Absent()


@pytest.mark.server
def test_the_word_of_the_user_decides_whether_copies_are_kept(dovecot: Dovecot) -> None:
    def look(copies: bool) -> object:
        return mail.send(welcome(), via=by(1), look=sent_folder(dovecot, "word", copies=copies)).look(KEY)

    assert look(True) == Absent()
    assert isinstance(look(False), Unknown)


@pytest.mark.server
def test_two_copies_of_one_mail_are_left_to_a_person(dovecot: Dovecot) -> None:
    for _ in range(2):
        dovecot.store("twice", stored())
    look = mail.send(welcome(), via=by(1), look=sent_folder(dovecot, "twice")).look(KEY)
    assert (
        isinstance(look, Unknown) and look.why.startswith("2 found in the sent folder: UID ") and len(look.found) == 2
    )


@pytest.mark.server
def test_another_folder_is_searched_when_it_is_named(dovecot: Dovecot) -> None:
    dovecot.store("named", stored(), folder="Other")
    assert isinstance(mail.send(welcome(), via=by(1), look=sent_folder(dovecot, "named")).look(KEY), Unknown)
    named = sent_folder(dovecot, "named", folder="Other")
    assert isinstance(mail.send(welcome(), via=by(1), look=named).look(KEY), Happened)


@pytest.mark.server
@pytest.mark.parametrize("fault", ["password", "folder", "server"])
def test_a_folder_that_cannot_be_searched_tells_nothing(dovecot: Dovecot, fault: str) -> None:
    with closed_port() as port:
        options = {
            "password": {"password": "wrong"},
            "folder": {"folder": "Nowhere"},
            "server": {"port": port},
        }[fault]
        look = mail.send(welcome(), via=by(1), look=sent_folder(dovecot, "fault", copies=True, **options)).look(KEY)
    assert isinstance(look, Unknown) and "cannot be searched" in look.why


@pytest.mark.server
def test_looking_changes_nothing_in_the_folder(dovecot: Dovecot) -> None:
    import imaplib

    dovecot.store("unseen", stored())
    assert isinstance(mail.send(welcome(), via=by(1), look=sent_folder(dovecot, "unseen")).look(KEY), Happened)
    with imaplib.IMAP4(dovecot.host, dovecot.port) as server:
        server.login("unseen", dovecot.password)
        server.select('"Sent Items"', readonly=True)
        assert server.uid("SEARCH", "UNSEEN")[1] == [b"1"]


def test_a_folder_name_that_imap_cannot_carry_is_refused() -> None:
    for name in ("Éléments envoyés", 'a"b', "a\r\nb"):
        with pytest.raises(Misuse, match="LIST"):
            mail.imap("imap.example.org", user="shop", password="pw", folder=name)


# -- in a flow ---------------------------------------------------------------------------------------


def welcome_flow(stage: Stage, port: int, folder: mail.ImapFolder | None, **process: int) -> Any:
    app = stage.process(**process)

    @app.effect
    def send_welcome(customer: str) -> Effect[mail.SentMail]:
        message = mail.message(sender=SENDER, to=customer, subject="Welcome", text="Hello")
        return mail.send(message, via=by(port), look=folder)

    @app.flow(key="welcome:{customer}", name="welcome")
    def flow(customer: str) -> str:
        return send_welcome(customer).message_id

    return flow


def settled(stage: Stage, flow: Any) -> Any:
    """Start a flow whose mail gets no answer, and call it again when its copy would be in the folder."""
    with pytest.raises(Waiting, match="looked for at its destination"):
        flow("ada@example.org")
    stage.clock.advance(121)
    return flow("ada@example.org")


def deliver_to(box: Mailbox, server: Dovecot, user: str) -> None:
    box.on_mail = lambda data: server.store(user, data)


@pytest.mark.server
def test_silence_after_the_mail_was_handed_over_sends_no_second_one(stage: Stage, dovecot: Dovecot) -> None:
    with mailbox(says="") as (box, port):
        deliver_to(box, dovecot, "flow-silence")
        flow = welcome_flow(stage, port, sent_folder(dovecot, "flow-silence"))
        assert settled(stage, flow) == box.mails[0]["Message-ID"]
    assert len(box.mails) == 1


@pytest.mark.server
def test_a_mail_that_is_not_among_the_sent_ones_goes_out_again(stage: Stage, dovecot: Dovecot) -> None:
    folder = sent_folder(dovecot, "flow-again", copies=True)
    with mailbox(says="") as (box, port):  # it is lost there, in spite of the dot

        def recover(data: bytes) -> None:
            box.says = "250 OK" if len(box.mails) == 2 else ""

        box.on_mail = recover
        first = settled(stage, welcome_flow(stage, port, folder))
    assert {arrived["Message-ID"] for arrived in box.mails} == {first}
    assert len(box.mails) == 2


def test_without_a_folder_to_look_into_a_person_decides(stage: Stage) -> None:
    with mailbox(says="") as (box, port), pytest.raises(NeedsReview):
        welcome_flow(stage, port, None)("ada@example.org")
    assert len(box.mails) == 1


@pytest.mark.server
def test_a_process_killed_after_sending_does_not_send_again(stage: Stage, dovecot: Dovecot) -> None:
    folder = sent_folder(dovecot, "flow-killed")
    with mailbox() as (box, port):
        deliver_to(box, dovecot, "flow-killed")
        with pytest.raises(Died):
            welcome_flow(stage, port, folder, at=3)("ada@example.org")
        assert len(box.mails) == 1
        stage.lapse()
        assert settled(stage, welcome_flow(stage, port, folder)) == box.mails[0]["Message-ID"]
    assert len(box.mails) == 1
