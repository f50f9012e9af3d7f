"""The tests of flow files are run on stand-ins that follow from their steps."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from twiceproof.declared.connections import Connections
from twiceproof.prove import flow_tests
from twiceproof.prove.flow_tests import FlowTestResult, flow_proof, prove_flow_tests, read_tested
from twiceproof.prove.prover import Prover

EXAMPLES = Path(__file__).parents[3] / "examples/flows"
HEAD = """\
flow: bill
input: {order: {id: integer, email: text}}
key: shop:order:{order.id}
"""
ORDER = "input: {order: {id: 7, email: ada@example.com}}"


def play(folder: Path, text: str, **options: Any) -> list[FlowTestResult]:
    (folder / "bill.flow.yaml").write_text(HEAD + text)
    return [*prove_flow_tests(read_tested(folder / "bill.flow.yaml"), Connections(), depth=1, **options)]


SAFE = """\
uses: [books]
steps:
  - step: invoice
    http: POST books /invoices
    json: {id: =order.id}
    repeat: {keyed: Idempotency-Key}
returns: =invoice.id
"""


def test_a_scene_is_played_under_every_fault_and_as_expected(tmp_path):
    tests = f"""\
tests:
  - name: one
    {ORDER}
    answers: {{POST books /invoices: {{status: 201, body: {{id: inv_1}}}}}}
    times: 2
    expect: {{returns: inv_1, "POST books /invoices": 1, duplicates: 1}}
"""
    (result,) = play(tmp_path, SAFE + tests)
    assert result.good and result.worlds == ("HttpWorld",), result
    assert result.report is not None and result.report.complete and len(result.report.verdicts) > 10


def test_a_declaration_that_is_wrong_and_an_expectation_that_is_not_met_are_told(tmp_path):
    tests = f"tests: [{{name: one, {ORDER}, expect: {{'POST books /invoices': 2, mails: 1, returns: x}}}}]\n"
    wrong = SAFE.replace("{keyed: Idempotency-Key}", "safe")
    (result,) = play(tmp_path, wrong + tests)
    assert not result.safe and not result.good
    told = " ".join(result.unmet)
    assert "POST books /invoices: 2 expected, and 1 seen" in told and "mails: 1 expected, and 0 seen" in told
    assert "returns: " in told


REMOTE = """\
uses: [builder, chat, shop]
steps:
  - approve: spend
    requester: bob
    ask: {notify: chat, text: "Order {order.id}? {link}"}
  - step: row
    sql: shop
    upsert: {table: orders, by: [id], row: {id: =order.id, email: =order.email}}
  - step: agent
    remote: ssh builder
    command: [run, --id, "{order.id}"]
    callback: finished
    timeout: 6h
  - publish: orders.done
    payload: {id: =order.id}
returns: =agent.ok
on_error:
  - notify: chat
    text: "{error.step} failed"
    repeat: safe
"""


def test_every_kind_of_connection_is_stood_in_for(tmp_path):
    tests = f"""\
tests:
  - name: approved
    {ORDER}
    approve: [spend]
    callbacks: {{finished: {{ok: true}}}}
    expect: {{returns: true, ssh builder: 1, notify chat: 1, sql shop orders: 1, message orders.done: 1}}
  - name: rejected
    {ORDER}
    reject: [spend]
    expect: {{ends: failed, ssh builder: 0, notify chat: 2, sql shop orders: 0}}
"""
    approved, rejected = play(tmp_path, REMOTE + tests)
    assert approved.good and rejected.good, (approved, rejected)
    assert set(approved.worlds) == {"BrokerWorld", "SshWorld", "TableWorld", "HttpWorld"}


def test_an_event_that_is_not_for_the_flow_starts_nothing(tmp_path):
    text = f"""\
on:
  - webhook: stripe
    secret: env:S
    only: type == "paid"
    give: {{order: =data}}
steps:
  - set: {{x: 1}}
tests:
  - name: another event
    event: {{type: refunded, data: {{}}}}
    expect: {{ends: ignored}}
  - name: another end
    event: {{type: refunded, data: {{}}}}
  - name: no such thing
    {ORDER}
    approve: [nothing]
"""
    ignored, wrong, broken = play(tmp_path, text)
    assert ignored.good and not wrong.good and wrong.unmet == ("ends: the event starts nothing",)
    assert not broken.good and "never for nothing" in broken.error
    assert [one.proof().safe for one in (ignored, wrong, broken)] == [True, False, False]
    assert [one.proof().ignored for one in (ignored, wrong, broken)] == [True, False, False]


CALLED: list[int] = []


def add(number: int) -> dict[str, int]:
    CALLED.append(number)
    return {"number": number}


def test_python_functions_are_counted_and_put_back(tmp_path):
    text = f"""\
steps:
  - step: added
    call: {__name__}:add
    with: {{number: =order.id}}
    repeat: REPEAT
tests: [{{name: one, {ORDER}, expect: {{'call {__name__}:add': 1}}}}]
"""
    before = add
    (safe,) = play(tmp_path, text.replace("REPEAT", "safe"))
    assert safe.good and add is before and CALLED == []  # each scenario has memory of its own


def test_evidence_names_the_content_and_every_test(tmp_path):
    from twiceproof.declared.releases import content_hash

    tests = f"tests: [{{name: one, {ORDER}, expect: {{mails: 1}}}}]\n"
    results = [FlowTestResult("one", error="broken")]
    (tmp_path / "bill.flow.yaml").write_text(HEAD + SAFE + tests)
    tested = read_tested(tmp_path / "bill.flow.yaml")
    read = tested.reads[0]
    assert read.file is not None
    proof = flow_proof(tested, results, tenant="t", depth=2, by="ann", host="here")
    assert proof.hash == content_hash(read.file) and (proof.flow, proof.tenant, proof.depth) == ("bill", "t", 2)
    assert [(one.name, one.safe, one.unmet) for one in proof.results] == [("one", False, ("broken",))]


@pytest.mark.slow
def test_the_flow_of_the_agent_is_proved():
    """The other examples are proved where they are promoted: tests/acceptance/test_flow_promotions.py."""
    file = EXAMPLES / "run_agent.flow.yaml"
    results = [*prove_flow_tests(read_tested(file), Connections.read(file.parent / "connections.yaml"), depth=1)]
    assert results and all(result.good for result in results), results
    assert all(result.report is not None and result.report.complete for result in results)


@pytest.mark.parametrize("landed", ["before", "after"])
def test_a_recovery_that_dies_as_it_asks_a_person_is_followed_by_another(monkeypatch, landed):
    """The second process is killed at the write that puts the run into review: the third one finds it there."""
    only = f"kill-write-11-after+kill-write-9-{landed}"
    monkeypatch.setattr(flow_tests, "Prover", functools.partial(Prover, only=only))
    file = EXAMPLES / "run_agent.flow.yaml"
    (result,) = prove_flow_tests(read_tested(file), Connections(), only="approved, and the agent reports")
    assert result.report is not None
    assert [(one.scenario, one.word) for one in result.report.verdicts] == [(only, "parked")]
