"""The pages of flows: what is live, drafts, releases, evidence; runs that are started by a form, rollbacks, pauses."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.unit.declared.releasing import make_live
from tests.unit.server.local_server import LocalServer
from tests.unit.server.ui.test_access import FORM, ORIGIN, form_of, login
from twiceproof import App, Misuse, load_flows
from twiceproof.declared.reading import read_flow
from twiceproof.declared.releases import FlowProof, TestProof, content_hash, keep_proof, push
from twiceproof.operations import block
from twiceproof.server.tokens import Scope
from twiceproof.server.ui.start_form import StartField, fields_of_input, input_of

BILL = """\
flow: bill
input:
  order: {id: integer, total: number, paid: yes_no, note: optional text, customer: {email: text}, lines: optional list}
key: shop:order:{order.id}
on:
  - manual: Bill an order
steps:
  - step: first
    sleep: 1h
returns: =order.total
tests: [{name: one, input: {order: {id: 1, total: 2, paid: true, customer: {email: a@b.example}}}}]
"""
CHANGED = BILL.replace("sleep: 1h", "sleep: 2h")
TYPED = {
    "input.order.id": "7",
    "input.order.total": "120.50",
    "input.order.paid": "true",
    "input.order.customer.email": "ada@example.com",
    "input.order.note": "",
    "input.order.lines": "",
}


@pytest.fixture
def server(app: App, tmp_path: Path) -> LocalServer:
    (tmp_path / "bill.flow.yaml").write_text(BILL)
    load_flows(app, tmp_path)
    return LocalServer(app)


def proof(text: str, **changes: Any) -> FlowProof:
    file = read_flow(text).file
    assert file is not None
    tests = (TestProof("one", 61, 61, **{"safe": True, **changes}),)
    return FlowProof("bill", "default", content_hash(file), "", {}, "0.1.0", 2, tests, by="ada", host="desk", at=1.0)


def page(server: LocalServer, path: str, cookie: Any = None) -> str:
    answer = server.call("GET", path, headers=[cookie] if cookie else [])
    assert answer.status == 200, answer.body
    return unescape(re.sub(r"<[^>]+>", " ", answer.body.decode()))


def send(server: LocalServer, path: str, fields: dict[str, str], cookie: Any, opened: str = "/flows/bill") -> Any:
    given = {"form": form_of(server, opened, cookie), **fields}
    return server.call("POST", path, urlencode(given).encode(), [ORIGIN, FORM, cookie])


@pytest.fixture
def ann(server: LocalServer) -> Any:
    return login(server, Scope.READ, Scope.RUN, Scope.RELEASE)


def test_a_flow_without_a_release_shows_its_steps_and_how_it_is_started(server):
    shown = page(server, "/flows/bill")
    assert "no release is live; runs begin on version" in shown and "sleep 1h" in shown and "Bill an order" in shown
    assert "order.total (number)" in shown and "order.note (optional text)" in shown
    assert server.call("GET", "/flows/none").status == server.call("GET", "/flows/bill/r9").status == 404
    assert 'href="/flows/bill"' in server.call("GET", "/flows").body.decode()


def test_the_page_tells_the_draft_from_what_is_live_and_shows_the_evidence(server):
    store = server.app.store
    make_live(store, BILL)
    block(keep_proof(store, proof(BILL)))
    shown = page(server, "/flows/bill")
    assert "Evidence for r1" in shown and "61 of 61" in shown and "61 scenarios of 1 test" in shown
    assert "by ada on desk" in shown and "The draft differs" not in shown
    block(push(store, "default", CHANGED, by="bob", note="two hours"))
    shown = page(server, "/flows/bill")
    assert "The draft differs from what is live" in shown and "two hours" in shown and "Evidence for the draft" in shown
    assert "A content without evidence cannot go live" in shown and "flows test bill.flow.yaml" in shown
    block(keep_proof(store, proof(CHANGED, unobserved=("first",), unmet=("mails: 1 expected, and 0 seen",))))
    shown = page(server, "/flows/bill")
    assert "mails: 1 expected, and 0 seen" in shown and "refused" in shown


def test_a_release_has_a_page_with_its_file(server):
    release = make_live(server.app.store, BILL)
    for name in ("r1", release.hash):
        shown = page(server, f"/flows/bill/{name}")
        assert "key: shop:order:{order.id}" in shown and release.hash[:12] in shown and "live" in shown


def test_a_run_is_started_once_by_its_form_with_what_was_typed(server, ann):
    answer = send(server, "/flows/bill/start", TYPED, ann)
    assert answer.status == 303 and answer.headers["location"].endswith("?said=started"), answer.body
    (run,) = server.app.runs(flow="bill")
    assert (run.key, answer.headers["location"].split("?")[0]) == ("shop:order:7", f"/runs/{run.run}")
    kept = bytes(server.app.history(run.run).input).decode()
    assert '"total":120.5' in kept and '"paid":true' in kept and "note" not in kept
    again = send(server, "/flows/bill/start", TYPED, ann)
    assert again.headers["location"].endswith("?said=known") and len(server.app.runs(flow="bill")) == 1


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("order.id", "seven", "order.id is not JSON"),
        ("order.id", "7.5", "order.id is no integer"),
        ("order.customer.email", " ", "order.customer.email is empty"),
        ("order.lines", '"a"', "order.lines is no list"),
    ],
)
def test_what_does_not_fit_is_told_by_its_field_and_starts_nothing(server, ann, field, typed, said):
    answer = send(server, "/flows/bill/start", {**TYPED, f"input.{field}": typed}, ann)
    assert answer.status == 400 and said in unescape(answer.body.decode())
    assert server.app.runs(flow="bill") == []


def test_a_flow_that_says_nothing_of_people_has_no_form(server):
    make_live(server.app.store, BILL.replace("on:\n  - manual: Bill an order\n", ""))
    assert "order.total (number)" not in page(server, "/flows/bill")


def test_a_flow_in_python_is_started_with_json(server, ann):
    answer = send(server, "/flows/sync/start", {"input.order": '{"id":"o1"}'}, ann, opened="/flows/sync")
    assert answer.status == 303 and [run.key for run in server.app.runs(flow="sync")] == ["order:o1"]


def test_a_person_rolls_back_and_pauses_and_is_named(server, ann):
    make_live(server.app.store, BILL)
    make_live(server.app.store, CHANGED)
    answer = send(server, "/flows/bill/rollback", {"to": "r1", "note": "too slow"}, ann)
    assert answer.headers["location"] == "/flows/bill?said=rolled-back"
    shown = page(server, "/flows/bill", ann)
    assert "rollback" in shown and "too slow" in shown and re.search(r"live\s+r1\s", shown)
    assert send(server, "/flows/bill/pause", {}, ann).headers["location"] == "/flows/bill?said=paused"
    assert "Resume" in page(server, "/flows/bill", ann)
    assert send(server, "/flows/bill/resume", {}, ann).headers["location"] == "/flows/bill?said=resumed"


def test_of_two_who_change_what_is_live_the_second_sees_that_it_has_changed(server: LocalServer, ann: Any) -> None:
    make_live(server.app.store, BILL)
    text = server.call("GET", "/flows/bill", headers=[ann]).body.decode()
    version = unescape(re.findall(r'name="version" value="([^"]+)"', text)[-1])
    assert send(server, "/flows/bill/pause", {"version": version}, ann).status == 303
    assert send(server, "/flows/bill/resume", {"version": version}, ann).status == 409
    assert "Resume" in page(server, "/flows/bill", ann)


def test_without_the_scope_nothing_is_changed(server):
    make_live(server.app.store, BILL)
    make_live(server.app.store, CHANGED)
    bob = login(server, Scope.READ, name="bob")
    shown = page(server, "/flows/bill", bob)
    assert "log in with a token that has the scope release" in re.sub(r"\s+", " ", shown)
    given = {"form": "x", "to": "r1"}
    for verb in ("rollback", "pause", "start"):
        answer = server.call("POST", f"/flows/bill/{verb}", urlencode(given).encode(), [ORIGIN, FORM, bob])
        assert answer.status == 403
    assert "r2" in page(server, "/flows/bill", bob)


def test_an_input_is_put_together_from_its_leaves():
    fields = [*fields_of_input({"a": "text", "b": {"c": "number", "d": "optional map"}})]
    assert [(one.name, one.kind, one.is_optional) for one in fields] == [
        ("a", "text", False),
        ("b.c", "number", False),
        ("b.d", "map", True),
    ]
    made = input_of(fields, {"input.a": "x", "input.b.c": "1e3"})
    assert made["a"] == "x" and bytes(made["b"]["c"]) == b"1e3" and "d" not in made["b"]
    with pytest.raises(Misuse, match=r"b\.c is empty"):
        input_of(fields, {"input.a": "x"})
    assert StartField(("n",), "text").read("007") == "007"
