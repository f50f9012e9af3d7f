"""Mails as drafts that are sent, against our simulators of Graph's and Gmail's mailboxes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from twiceproof import Absent, Happened, Misuse, NotDone, OutcomeUnknown, Unknown, Waiting
from twiceproof.effects import mail
from twiceproof.effects.mail import DraftSending, SentMail
from twiceproof.prove.simulators import GmailSimulator, GraphSimulator
from twiceproof.prove.simulators.server import SimulatedAnswer

KEY = "tp_" + "a1" * 16
TOKEN = "a-token-canary"
VIA: dict[str, tuple[Any, Any]] = {"graph": (GraphSimulator, mail.graph), "gmail": (GmailSimulator, mail.gmail)}


class Post:
    """A simulated mailbox, and a mail to send by it."""

    def __init__(self, service: str, box: Any) -> None:
        self.service = service
        self.box = box
        self.via = VIA[service][1](auth=lambda: TOKEN, url=box.url, timeout=5)

    def welcome(self) -> DraftSending:
        return mail.send(welcome(), via=self.via)

    def state(self) -> tuple[int, int]:
        return len(self.box.sent), len(self.box.drafts)


def welcome(**headers: str) -> EmailMessage:
    made = mail.message(
        sender="shop@example.org", to="ada@example.org", cc="bob@example.org", subject="Grüße", text="Hello", html="<b>"
    )
    for name, value in headers.items():
        made[name] = value
    return made


@pytest.fixture(params=VIA)
def post(request: pytest.FixtureRequest) -> Iterator[Post]:
    with VIA[request.param][0]() as box:
        yield Post(request.param, box)


def test_a_mail_is_a_draft_that_is_sent(post: Post) -> None:
    effect = post.welcome()
    assert (effect.repeat.kind, effect.look(KEY)) == ("check", Absent())
    assert effect.perform(KEY) == SentMail(f"<{KEY}@example.org>")
    assert post.state() == (1, 0) and isinstance(effect.look(KEY), Happened)
    assert TOKEN not in str(effect.describe()) + repr(effect.via)


def test_an_earlier_attempts_draft_is_sent_and_no_other_is_made(post: Post) -> None:
    post.box.refuse("POST", SimulatedAnswer(503), "/send")
    with pytest.raises(OutcomeUnknown):
        post.welcome().perform(KEY)
    assert post.state() == (0, 1) and post.welcome().look(KEY) == Absent()
    post.welcome().perform(KEY)
    assert post.state() == (1, 0)


def test_a_draft_without_an_answer_is_not_a_mail_of_unknown_outcome(post: Post) -> None:
    post.box.lose_answer("POST")
    with pytest.raises(NotDone):
        post.welcome().perform(KEY)
    assert post.state() == (0, 1)
    post.welcome().perform(KEY)
    assert post.state() == (1, 0)


def test_a_sending_without_an_answer_is_found(post: Post) -> None:
    post.box.lose_answer("POST", "/send")
    with pytest.raises(OutcomeUnknown):
        post.welcome().perform(KEY)
    assert isinstance(post.welcome().look(KEY), Happened)
    assert post.welcome().perform(KEY) and post.state() == (1, 0)  # even if it is performed again


def test_two_drafts_of_one_key_are_one_mail_and_no_draft_is_left(post: Post) -> None:
    effect = post.welcome()
    for _ in range(2):
        effect._create(KEY)
    assert post.state() == (0, 2)
    effect.perform(KEY)
    assert post.state() == (1, 0)


def test_a_mail_that_was_sent_twice_is_left_to_a_person(post: Post) -> None:
    effect = post.welcome()
    for _ in range(2):
        post.via.send(effect._create(KEY), KEY)
    look = effect.look(KEY)
    assert isinstance(look, Unknown) and len(look.found) == 2


def test_a_draft_that_is_gone_when_it_is_sent_leaves_it_open(post: Post) -> None:
    post.box.refuse("POST", SimulatedAnswer(404), "/send")
    with pytest.raises(OutcomeUnknown, match="is gone"):
        post.welcome().perform(KEY)


@pytest.mark.parametrize(("status", "final"), [(403, True), (429, False), (401, False)])
def test_a_refusal_leaves_no_mail(post: Post, status: int, final: bool) -> None:
    post.box.refuse("POST", SimulatedAnswer(status, {"error": {"code": "x", "message": TOKEN}}))
    with pytest.raises(NotDone) as refusal:
        post.welcome().perform(KEY)
    assert (
        refusal.value.data.get("final", False) is final and TOKEN not in str(refusal.value) and post.state() == (0, 0)
    )


def test_the_mail_has_its_recipients_also_the_hidden_ones_and_its_text(post: Post) -> None:
    mail.send(welcome(Bcc="eve@example.org"), via=post.via).perform(KEY)
    (sent,) = post.box.sent
    if post.service == "gmail":
        assert (sent["To"], sent["Cc"], sent["Bcc"]) == ("ada@example.org", "bob@example.org", "eve@example.org")
        assert (sent["Subject"], sent["Message-ID"]) == ("Grüße", f"<{KEY}@example.org>")
    else:
        fields = ("toRecipients", "ccRecipients", "bccRecipients")
        people = [one["emailAddress"]["address"] for field in fields for one in sent[field]]
        assert people == ["ada@example.org", "bob@example.org", "eve@example.org"]
        assert (sent["subject"], sent["body"]["contentType"]) == ("Grüße", "html")


def test_attachments_go_along_with_graph_up_to_its_limit() -> None:
    with GraphSimulator() as box:
        post = Post("graph", box)
        message = welcome()
        message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="invoice.pdf")
        mail.send(message, via=post.via).perform(KEY)
        assert [one["name"] for one in box.sent[0]["attachments"]] == ["invoice.pdf"]
        message.add_attachment(b"x" * 3_000_001, maintype="application", subtype="pdf", filename="large.pdf")
        with pytest.raises(NotDone, match="3 MB"):
            mail.send(message, via=post.via).perform("tp_" + "b2" * 16)


def test_a_folder_to_look_into_is_refused_and_so_is_no_mailbox(post: Post) -> None:
    look = mail.imap("127.0.0.1", user="u", password="p")
    with pytest.raises(Misuse, match="leave look= out"):
        mail.send(welcome(), via=post.via, look=look)  # type: ignore[call-overload]
    with pytest.raises(Misuse, match="via= is a mail server"):
        mail.send(welcome(), via="smtp.example.org")  # type: ignore[call-overload]


def greeting(stage: Stage, post: Post, **process: Any) -> Any:
    app = stage.process(**process)

    @app.effect
    def greet(number: int) -> DraftSending:
        return post.welcome()

    @app.flow(key="{number}")
    def order(number: int) -> str:
        return str(greet(number).message_id)

    return order


def finished(stage: Stage, post: Post) -> str:
    """Call the flow until it is done: it waits until its mail can be looked for."""
    for _ in range(5):
        with contextlib.suppress(Waiting):
            return str(greeting(stage, post)(17))
        stage.clock.advance(600)
    raise AssertionError("it still waits")


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("at", range(1, 8))
def test_killed_at_each_write_of_the_ledger_it_is_one_mail_and_no_draft(post: Post, at: int, landed: bool) -> None:
    stage = Stage()
    with contextlib.suppress(Died):
        greeting(stage, post, at=at, landed=landed)(17)
    stage.lapse()
    assert finished(stage, post).endswith("@example.org>")
    assert post.state() == (1, 0)
    stage.close()


@pytest.mark.parametrize("ending", ["/send", "s"])  # of the sending's path, and of the creation's
@pytest.mark.parametrize("done", [True, False])
def test_cut_off_at_either_of_the_two_requests_it_is_one_mail_and_no_draft(post: Post, ending: str, done: bool) -> None:
    stage = Stage()
    if done:
        post.box.lose_answer("POST", ending)
    else:
        post.box.refuse("POST", SimulatedAnswer(503), ending)
    assert finished(stage, post).endswith("@example.org>")
    assert post.state() == (1, 0)
    sendings = [one for one in post.box.requests if one.method == "POST" and one.path.endswith("/send")]
    assert len(sendings) == (1 if done or ending != "/send" else 2)
    stage.close()
