"""Notices of blocked duplicates: when one is sent, by whom, and what is in it."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.servers.address import closed_port
from tests.unit.effects.loopback import trap
from tests.unit.effects.mailbox import mailbox
from twiceproof import App, Misuse, NotDone, Notice, OutcomeUnknown, env, to_email, to_log, to_webhook
from twiceproof.claims.retention import sweep
from twiceproof.effects.url_guard import NotAllowed
from twiceproof.effects.webhook_client import WebhookClient, signed_headers
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

SECRET = "whsec_" + b64encode(b"k" * 32).decode()
OLDER = "whsec_" + b64encode(b"o" * 32).decode()
NOTICE = Notice("dup_1", "default", "stripe", "sync_order", "order:17", 12, 1_700_000_000.0, 1_700_000_060.0)


class Office:
    """Processes on one store, and everything their hook was told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(self.clock)
        self.told: list[Notice] = []

    def process(self, hook: Any = None, **options: Any) -> App:
        app = App(GroupedStore(self.engine, clock=self.clock), clock=self.clock)
        app.tally._every = 3_600.0
        app.notify_duplicates(hook or self.told.append, **{"quiet": "10m", "threshold": 3, **options})
        return app


@pytest.fixture
def office() -> Office:
    return Office()


def block_(app: App, times: int, key: str = "order:1") -> None:
    for _ in range(times):
        app.claims.duplicates.blocked("ship", key, "stripe")
    app.tally.flush()


# -- when ----------------------------------------------------------------------------------------


def test_one_message_when_the_threshold_is_reached_and_none_before(office: Office) -> None:
    app = office.process()
    block_(app, 2)
    assert office.told == []
    block_(app, 1)
    assert [(n.source, n.operation, n.key, n.count) for n in office.told] == [("stripe", "ship", "order:1", 3)]


def test_within_the_quiet_period_there_is_one_message_per_key(office: Office) -> None:
    app = office.process()
    for _ in range(5):
        block_(app, 3, "order:1")
        block_(app, 3, "order:2")
        office.clock.advance(60)
    assert sorted(n.key for n in office.told) == ["order:1", "order:2"]


def test_after_the_quiet_period_it_is_told_what_came_meanwhile(office: Office) -> None:
    app = office.process()
    block_(app, 3)
    block_(app, 4)
    office.clock.advance(601)
    block_(app, 1)
    assert [n.count for n in office.told] == [3, 5]
    assert len({n.id for n in office.told}) == 2


def test_several_processes_send_one_message(office: Office) -> None:
    apps = [office.process() for _ in range(4)]
    for app in apps:
        block_(app, 5)
    assert len(office.told) == 1
    office.clock.advance(601)
    for app in apps:
        app.tally.flush()
    assert len(office.told) == 1, "what was counted before is covered by the first message"
    for app in apps:
        block_(app, 5)
    assert len(office.told) == 2


def test_each_hook_has_its_own_quiet_period(office: Office) -> None:
    app, other = office.process(), []
    app.notify_duplicates(other.append, quiet="1m", threshold=3)
    block_(app, 3)
    office.clock.advance(61)
    block_(app, 3)
    assert (len(office.told), len(other)) == (1, 2)


def test_a_new_hour_counts_anew(office: Office) -> None:
    app = office.process()
    block_(app, 3)
    office.clock.advance(3_601)
    block_(app, 2)
    assert len(office.told) == 1
    block_(app, 1)
    assert len(office.told) == 2


def test_a_message_that_was_surely_not_sent_may_be_sent_by_the_next_repeat(office: Office) -> None:
    def down(notice: Notice) -> None:
        raise NotDone("refused")

    block_(office.process(down), 3)
    block_(office.process(), 3)
    assert len(office.told) == 1


def test_a_message_that_was_surely_not_sent_is_sent_with_the_next_repeat(office: Office) -> None:
    refused = [1]

    def hook(notice: Notice) -> None:
        if refused:
            raise NotDone(f"refused {refused.pop()}")
        office.told.append(notice)

    app = office.process(hook)
    block_(app, 3)
    assert office.told == []
    block_(app, 1)
    assert [notice.count for notice in office.told] == [4]
    office.clock.advance(601)
    block_(app, 3)
    assert [notice.count for notice in office.told] == [4, 3]


def test_a_receiver_that_is_away_is_not_asked_for_every_key(office: Office) -> None:
    """Each may take ten seconds to find out, and more repeats come meanwhile."""
    tried: list[str] = []

    def away(notice: Notice) -> None:
        tried.append(notice.key)
        if len(tried) <= 3:
            raise NotDone("away; try again.")

    app = office.process(away)
    for number in range(5):
        for _ in range(3):
            app.claims.duplicates.blocked("ship", f"order:{number}", "stripe")
    app.tally.flush()
    assert len(tried) == 3
    block_(app, 1, key="order:9")
    assert len(tried) == 8
    assert set(tried[3:]) == {f"order:{number}" for number in range(5)}


def test_repeats_while_another_process_keeps_quiet_are_told_of_afterwards(office: Office) -> None:
    block_(office.process(), 3)
    app = office.process()
    block_(app, 3)
    assert len(office.told) == 1
    office.clock.advance(601)
    block_(app, 1)
    assert [notice.count for notice in office.told] == [3, 4]


def test_a_message_that_may_have_been_sent_is_not_sent_again_at_once(office: Office) -> None:
    def lost(notice: Notice) -> None:
        raise TimeoutError("no answer")

    app = office.process(lost)
    block_(app, 3)
    block_(app, 1)
    block_(office.process(), 3)
    assert office.told == []


def test_a_storm_over_many_keys_does_not_become_one_of_messages(office: Office) -> None:
    app = office.process(threshold=1)
    for n in range(100):
        app.claims.duplicates.blocked("ship", f"order:{n}")
    app.tally.flush()
    assert len(office.told) == 20


def test_closing_tells_what_is_left(office: Office) -> None:
    app = office.process()
    for _ in range(3):
        app.claims.duplicates.blocked("ship", "order:1")
    app.close()
    assert len(office.told) == 1


def test_what_a_notice_leaves_in_the_store_is_swept(office: Office) -> None:
    app = office.process()
    block_(app, 3)
    office.clock.advance(2 * 86_400)
    block(sweep(app.store))
    assert office.engine.scan("notice", None, None, None, 10).records == []


@pytest.mark.parametrize("options", [{"threshold": 0}, {"threshold": True}, {"quiet": "soon"}, {"hook": "log"}])
def test_what_means_nothing_is_refused(office: Office, options: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        office.process(**options)


# -- where ---------------------------------------------------------------------------------------


def test_the_log_says_it_in_one_line(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        to_log()(NOTICE)
    assert "12 repeats of sync_order for 'order:17' from stripe were blocked" in caplog.text


def test_the_webhook_is_signed_so_that_a_receiver_can_verify_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTICE_SECRET", SECRET)
    monkeypatch.setenv("NOTICE_SECRET_OLD", OLDER)
    with trap() as server:
        sender = WebhookClient(allow=("127.0.0.0/8",), http=True, resolve=lambda host, port: ["127.0.0.1"])
        to_webhook(f"http://hooks.shop.io:{server.port}/n", env("NOTICE_SECRET", "NOTICE_SECRET_OLD"), sender=sender)(
            NOTICE
        )
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = (line.partition(": ") for line in head.decode().split("\r\n")[1:])
    headers = {name: value for name, _, value in lines}
    for secret in (SECRET, OLDER):
        assert Webhook(secret).verify(body, headers)["data"]["key"] == "order:17"
    assert json.loads(body)["type"] == "duplicates.blocked"
    assert headers["webhook-id"] == "dup_1"


def test_a_webhook_that_does_not_answer_well_was_not_sent() -> None:
    with trap(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n") as server:
        sender = WebhookClient(allow=("127.0.0.0/8",), http=True, resolve=lambda host, port: ["127.0.0.1"])
        with pytest.raises(NotDone, match="503"):
            to_webhook(f"http://hooks.shop.io:{server.port}/n", SECRET, sender=sender)(NOTICE)


def test_a_webhook_inside_is_refused_when_it_is_declared() -> None:
    with pytest.raises(NotAllowed):
        to_webhook("https://169.254.169.254/", SECRET)
    to_webhook("https://10.0.0.7/n", SECRET, allow=("10.0.0.0/8",))


def test_a_signing_secret_without_its_padding_signs_alike() -> None:
    padded = "whsec_" + b64encode(b"k" * 25).decode()
    assert signed_headers("m", 1.0, b"{}", [padded]) == signed_headers("m", 1.0, b"{}", [padded.rstrip("=")])


@pytest.mark.parametrize("secret", ["whsec_", "short", "whsec_c2hvcnQ="])
def test_a_weak_secret_signs_nothing(secret: str) -> None:
    with trap() as server:
        sender = WebhookClient(allow=("127.0.0.0/8",), http=True, resolve=lambda host, port: ["127.0.0.1"])
        with pytest.raises(Misuse, match="signing secret"):
            to_webhook(f"http://hooks.shop.io:{server.port}/n", secret, sender=sender)(NOTICE)
    assert server.requests == []


def test_an_email_arrives_with_a_stable_id_and_no_headers_of_others() -> None:
    evil = Notice("dup_2", "default", "x\r\nBcc: evil@example.org", "ship", "order:\u202e17", 3, 0.0, 1.0)
    with mailbox() as (box, port):
        hook = to_email(
            ["ops@shop.io", "b@shop.io"], sender="twiceproof@shop.io", host="127.0.0.1", port=port, tls="none"
        )
        hook(NOTICE)
        hook(evil)
    first, second = box.mails
    assert first["Message-ID"] == "<dup_1@twiceproof.invalid>"
    assert "12 repeats of sync_order for 'order:17'" in first["Subject"]
    assert "twiceproof duplicates --flow sync_order" in first.get_content()
    assert box.envelopes[1] == ("twiceproof@shop.io", ["ops@shop.io", "b@shop.io"])
    assert second["Bcc"] is None


def test_a_password_is_not_sent_in_the_clear() -> None:
    with pytest.raises(Misuse, match="unencrypted"):
        to_email("a@b.io", sender="c@b.io", host="127.0.0.1", user="me", password="pw", tls="none")
    with mailbox() as (box, port):
        hook = to_email("a@b.io", sender="c@b.io", host="127.0.0.1", port=port, user="me", password="pw")
        with pytest.raises(NotDone, match="STARTTLS"):
            hook(NOTICE)
    assert box.mails == []


def mail_to(port: int, to: str = "ops@shop.io") -> None:
    to_email(to, sender="twiceproof@shop.io", host="127.0.0.1", port=port, tls="none")(NOTICE)


def test_a_mail_to_a_server_that_is_not_there_or_says_no_was_not_sent() -> None:
    with closed_port() as port, pytest.raises(NotDone, match="is not available"):
        mail_to(port)
    with mailbox(says="451 later") as (_, port), pytest.raises(NotDone, match="451"):
        mail_to(port)


def test_a_mail_to_a_server_that_hangs_up_may_have_been_sent() -> None:
    with mailbox(says="") as (box, port), pytest.raises(OutcomeUnknown):
        mail_to(port)
    assert box.mails
