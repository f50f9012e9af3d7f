"""Draft runs: keys of their own, draft sides or stand-ins, and nothing live is touched."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.unit.effects.mailbox import mailbox
from twiceproof import App, Misuse, NotDone, Waiting, load_flows
from twiceproof.declared.connections import Connections
from twiceproof.declared.drafts import DraftFlow, compile_draft, run_draft
from twiceproof.declared.releases import push
from twiceproof.operations import block

CANARY = "canary-of-a-live-secret"
STEPS = """\
  - step: profile
    http: GET crm /customers/{id}
  - step: bill
    http: POST crm /bills
    json: {customer: =id}
    repeat: safe
  - step: mailed
    mail: mail
    to: "{profile.email}"
    subject: Hello
    text: Hello
    repeat: never
returns: {email: =profile.email}
tests:
  - name: one
    input: {id: a}
    answers:
      GET crm /customers/*: {body: {email: stand-in@example.com}}
"""
FLOW = "flow: greet\ninput: {id: text}\nkey: greet:{id}\nuses: [crm, mail]\nsteps:\n" + STEPS


class Crm:
    """A real server that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        crm = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                crm.asked.append((self.command, self.headers.get("authorization") or ""))
                text = json.dumps({"email": "ada@example.com"}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer  # noqa: N815 - the names it looks for

            def log_message(self, *_: Any) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def live() -> Iterator[Crm]:
    made = Crm()
    yield made
    made.close()


@pytest.fixture
def sandbox() -> Iterator[Crm]:
    made = Crm()
    yield made
    made.close()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/ledger.db") as made:
        yield made


def connections(folder: Path, live: Crm, draft: str = "", mail: str = "") -> Connections:
    text = f'crm: {{live: {{http: "{live.url}", bearer: env:CRM_TOKEN}}{draft}}}\n'
    text += f"mail: {{live: {{smtp: mail.invalid:25, from: shop@example.com, tls: none}}{mail}}}\n"
    (folder / "connections.yaml").write_text(text)
    read = Connections.read(folder / "connections.yaml")
    assert read.problems == ()
    return read


def drafted(app: App, known: Connections, text: str = FLOW, **given: Any) -> DraftFlow:
    release, _ = block(push(app.store, "default", text, by="ada"))
    return compile_draft(app, release, known, **given)


def test_without_a_draft_side_everything_is_stood_in_for(app, tmp_path, live, monkeypatch):
    monkeypatch.setenv("CRM_TOKEN", CANARY)
    reached: list[Any] = []
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, lambda _, address: reached.append(address))
    made = drafted(app, connections(tmp_path, live))
    assert made.function("a") == {"email": "stand-in@example.com"}
    assert (live.asked, reached) == ([], [])
    assert made.stood_in == ("GET crm /customers/{id}", "POST crm /bills", "mail mail")
    assert CANARY not in repr(app.history("greet@draft/greet:a"))


def test_a_draft_side_is_used_and_the_live_one_never(app, tmp_path, live, sandbox, monkeypatch):
    monkeypatch.setenv("CRM_TOKEN", CANARY)
    known = connections(tmp_path, live, f', draft: {{http: "{sandbox.url}"}}')
    made = drafted(app, known)
    assert made.function("a") == {"email": "ada@example.com"}
    assert made.stood_in == ("mail mail",) and live.asked == []
    assert sandbox.asked == [("GET", ""), ("POST", "")]


def test_a_live_connection_is_used_only_if_it_is_allowed_by_name(app, tmp_path, live, monkeypatch):
    monkeypatch.setenv("CRM_TOKEN", CANARY)
    made = drafted(app, connections(tmp_path, live), allowed=["crm"])
    made.function("a")
    assert live.asked == [("GET", f"Bearer {CANARY}"), ("POST", f"Bearer {CANARY}")]
    assert (made.allowed, made.stood_in) == (("crm",), ("mail mail",))
    with pytest.raises(Misuse, match="No step uses crn"):
        drafted(app, connections(tmp_path, live), allowed=["crn"])


def test_a_mail_goes_to_the_redirect_or_nowhere(app, tmp_path, live):
    with mailbox() as (box, port):
        side = f"smtp: 127.0.0.1:{port}, from: shop@example.com, tls: none"
        nowhere = drafted(app, connections(tmp_path, live, mail=f", draft: {{{side}}}"))
        nowhere.function("a")
        assert box.mails == [] and "mail mail" in nowhere.stood_in
        known = connections(tmp_path, live, mail=f", draft: {{{side}, redirect: ada@example.com}}")
        drafted(app, known).function("b")
        (mail,) = box.mails
        assert (mail["to"], mail["subject"]) == ("ada@example.com", "DRAFT: Hello")
        assert box.envelopes[0][1] == ["ada@example.com"]


def test_a_draft_run_takes_no_live_key_and_its_own_are_kept_a_week(app, tmp_path, live):
    known = connections(tmp_path, live)
    made = drafted(app, known)
    made.function("a")
    (run,) = app.runs()
    assert (run.flow, run.key, run.state) == ("greet@draft", "greet:a", "done")
    assert run.version.startswith("draft-")
    assert app.runs(flow="greet") == []
    assert made.function.flow.policy.life.keep == 7 * 86_400


def test_no_trigger_and_no_worker_starts_a_draft(app, tmp_path, live):
    known = connections(tmp_path, live)
    hooked = FLOW.replace("uses:", "on:\n  - every: 1d\n    give: {id: =tick}\nuses:")
    drafted(app, known, hooked)
    assert [*app.flows] == [] and not app.hooks and app.schedules.queues() == []


def test_functions_other_flows_and_messages_are_stood_in_for(app, tmp_path, live, monkeypatch):
    (tmp_path / "acts_of_greet.py").write_text("def act(id):\n    raise SystemExit('it acted')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (
        "flow: greet\ninput: {id: text}\nkey: greet:{id}\nsteps:\n"
        "  - {step: acted, call: 'acts_of_greet:act', with: {id: =id}, repeat: never}\n"
        "  - {step: other, flow: ship, with: {id: =id}}\n"
        "  - {publish: orders, payload: =id}\n"
        "returns: [=acted, =other]\n"
        "tests: [{name: one, input: {id: a}, answers: {'call acts_of_greet:act': 5, flow ship: 7}}]\n"
    )
    made = drafted(app, Connections(), text)
    assert made.function("a") == [5, 7]
    assert [run.flow for run in app.runs()] == ["greet@draft"]
    with pytest.raises(SystemExit):
        drafted(app, Connections(), text, allowed=["acts_of_greet:act"]).function("b")


def test_a_probe_of_a_live_connection_is_stood_in_for_with_its_step(app, tmp_path, live, sandbox):
    text = FLOW.replace("repeat: safe", "repeat: {check: GET books /bills, found: body}").replace(
        "uses: [crm, mail]", "uses: [crm, mail, books]"
    )
    known = connections(tmp_path, live, f', draft: {{http: "{sandbox.url}"}}')
    (tmp_path / "connections.yaml").write_text(
        (tmp_path / "connections.yaml").read_text() + f'books: {{live: {{http: "{live.url}"}}}}\n'
    )
    known = Connections.read(tmp_path / "connections.yaml")
    made = drafted(app, known, text)
    made.function("a")
    assert "POST crm /bills" in made.stood_in and live.asked == []


def test_an_answer_that_is_missing_is_said_with_the_next_move(app, tmp_path, live):
    text = FLOW.replace("    http: GET crm", "    result: body.address\n    http: GET crm").replace(
        "profile.email", "profile"
    )
    made = drafted(app, connections(tmp_path, live), text)
    with pytest.raises(NotDone, match="the stand-in for GET crm /customers/a has no answer"):
        made.function("a")


def test_a_draft_waits_and_goes_on_when_it_is_run_again(app, tmp_path, live):
    text = FLOW.replace("steps:\n", "steps:\n  - {approve: large}\n", 1)
    made = drafted(app, connections(tmp_path, live), text)
    with pytest.raises(Waiting):
        made.function("a")
    (asked,) = app.approvals()
    assert asked.flow == "greet@draft"
    app.decide(asked.id, True, by="ada")
    assert made.function("a") == {"email": "stand-in@example.com"}


def test_a_live_run_and_a_draft_run_of_one_event_know_nothing_of_each_other(app, tmp_path):
    text = "flow: greet\ninput: {id: text}\nkey: greet:{id}\nsteps:\n  - set: {said: =id}\nreturns: =said\n"
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows/greet.flow.yaml").write_text(text)
    flow = load_flows(app, tmp_path / "flows")["greet"]
    made = drafted(app, Connections(), text.replace("returns: =said", 'returns: ="draft " + said'))
    assert (made.function("a"), flow("a")) == ("draft a", "a")
    assert sorted(run.flow for run in app.runs()) == ["greet", "greet@draft"]


def test_a_poll_of_a_connection_without_a_draft_side_leaves_the_draft_alone(app, tmp_path, live):
    poll = "on:\n  - {poll: shop, every: 1h, http: 'GET crm /orders?since={since}', items: body}\nuses:"
    made = drafted(app, connections(tmp_path, live), FLOW.replace("uses:", poll))
    assert run_draft(made, "a").state == "done" and live.asked == []


def test_a_notice_that_is_stood_in_for_needs_no_address_of_ours(app, tmp_path, live):
    asks = "  - approve: large\n    ask: {notify: chat, text: 'Look: {link}'}\n"
    text = FLOW.replace("steps:\n", f"steps:\n{asks}", 1).replace("[crm", "[chat, crm")
    made = drafted(app, connections(tmp_path, live), text)
    run = run_draft(made, "a")
    assert (run.state, run.reason) == ("waiting", "waits for an approval of large")


@pytest.mark.parametrize("event", [{}, {"other": 1, "id": "a"}, [1]])
def test_an_event_that_does_not_fit_is_told_with_the_inputs(app, event):
    text = "flow: greet\ninput: {id: text, name: text}\nkey: greet:{id}\nsteps:\n  - set: {said: =id}\n"
    with pytest.raises(Misuse, match="does not fit the inputs id, name"):
        run_draft(drafted(app, Connections(), text), event)
