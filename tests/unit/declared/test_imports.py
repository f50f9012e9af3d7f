"""Workflows of n8n become flow files, and OpenAPI documents say how their steps may be repeated."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from twiceproof import Misuse
from twiceproof.cli.main import cli
from twiceproof.declared.connections import Connections
from twiceproof.declared.imports import import_n8n
from twiceproof.declared.lint import lint
from twiceproof.declared.reading import read_flow
from twiceproof.declared.suggestions import suggest_repeats
from twiceproof.prove.flow_tests import prove_flow_tests, read_tested


def node(name: str, kind: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "type": f"n8n-nodes-base.{kind}", "parameters": parameters}


def chain(*exits: tuple[str, list[list[str]]]) -> dict[str, Any]:
    return {name: {"main": [[{"node": one} for one in some] for some in outs]} for name, outs in exits}


WORKFLOW = {
    "name": "Bill an order",
    "nodes": [
        node("Order paid", "webhook", path="paid"),
        node("Customer", "httpRequest", url="=https://api.crm.example/customers/{{ $json.body.customer }}"),
        node(
            "Large?",
            "if",
            conditions={
                "conditions": [
                    {
                        "leftValue": "={{ $('Order paid').item.json.body.total }}",
                        "rightValue": 5000,
                        "operator": {"operation": "gt"},
                    }
                ]
            },
        ),
        node("Wait a day", "wait", amount=1, unit="days"),
        node(
            "Create invoice",
            "httpRequest",
            method="POST",
            url="https://api.books.example/invoices",
            jsonBody='={"external_id": "={{ $node[\'Order paid\'].json.body.id }}", "to": "Dear {{ $json.name }}"}',
        ),
        node("Tell", "emailSend", toEmail="={{ $json.email }}", subject="Thanks", text="Invoice {{ $json.id }}"),
        node("Code", "code", jsCode="return 1"),
    ],
    "connections": chain(
        ("Order paid", [["Customer"]]),
        ("Customer", [["Large?"]]),
        ("Large?", [["Wait a day"], ["Create invoice"]]),
        ("Create invoice", [["Tell"]]),
        ("Tell", [["Code"]]),
    ),
}


def test_every_node_that_acts_arrives_as_never_with_a_list_of_steps_to_declare():
    made = import_n8n(WORKFLOW)
    assert made.name == "bill_an_order" and made.to_declare == ("create_invoice", "tell")
    customer, choice = made.data["steps"]
    assert customer == {"step": "customer", "http": "GET crm /customers/{event.customer}"}
    assert choice["choose"][0] == {"when": "event.total > 5000", "do": [{"sleep": "1d"}]}
    invoice, mail = choice["choose"][1]["else"]
    assert invoice["repeat"] == mail["repeat"] == "never"
    assert invoice["json"] == {"external_id": "=event.id", "to": "Dear {customer.name}"}
    assert made.connections["books"] == {"live": {"http": "https://api.books.example"}}
    assert [line.partition(":")[0] for line in made.untranslated] == ["Code (code)"]


def test_the_file_has_nothing_else_wrong_with_it():
    text = yaml.safe_dump(import_n8n(WORKFLOW).data, sort_keys=False)
    assert {one.rule for one in lint(read_flow(text))} <= {"no-test", "dangerous-before-safe"}, lint(read_flow(text))


TRIAL = """\
tests:
  - name: a small order
    input: {event: {id: 7, total: 10, customer: c1}}
    answers:
      GET crm /customers/*: {body: {name: Ada, email: ada@example.com}}
      POST books /invoices: {status: 201, body: {id: inv_1, email: ada@example.com}}
      GET books /invoices*: {body: {items: [{id: inv_1, email: ada@example.com}]}, after: POST books /invoices}
    expect: {mails: 1, POST books /invoices: 1}
"""


@pytest.mark.forks
def test_after_its_steps_are_declared_it_is_proved(tmp_path):
    made = import_n8n(WORKFLOW)
    (tmp_path / "connections.yaml").write_text(yaml.safe_dump(made.connections))
    invoice, _ = made.data["steps"][1]["choose"][1]["else"]
    invoice["repeat"] = {"check": "GET books /invoices?external_id={event.id}", "found": "body.items[0]"}
    file = tmp_path / f"{made.name}.flow.yaml"
    file.write_text(yaml.safe_dump(made.data, sort_keys=False) + TRIAL)
    assert {one.rule for one in lint(read_flow(file.read_text()))} <= {"dangerous-before-safe"}
    (result,) = prove_flow_tests(read_tested(file), Connections.read(tmp_path / "connections.yaml"), depth=1)
    assert result.good, (result.unmet, result.error, result.report and result.report.bad)
    invoice["repeat"] = "safe"  # declared wrongly, it is found out
    file.write_text(yaml.safe_dump(made.data, sort_keys=False) + TRIAL)
    (result,) = prove_flow_tests(read_tested(file), Connections.read(tmp_path / "connections.yaml"), depth=1)
    assert not result.safe


def test_the_workflow_that_we_hand_out_can_be_read(tmp_path):
    done = CliRunner().invoke(cli, ["connector", "n8n", "--url", "https://claims.example"])
    found = import_n8n(json.loads(done.output))
    assert found.data["on"] and found.data["steps"]


def test_what_is_no_workflow_is_refused():
    with pytest.raises(Misuse, match="no workflow of n8n"):
        import_n8n({"steps": []})


def test_the_command_writes_a_file_once(tmp_path: Path):
    source = tmp_path / "workflow.json"
    source.write_text(json.dumps(WORKFLOW))
    words = ["flows", "import", "n8n", str(source), "--to", str(tmp_path / "flows")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0 and "2 steps to declare: create_invoice, tell" in done.output, done.output
    assert "Not translated: Code (code)" in done.output
    assert (tmp_path / "flows/bill_an_order.flow.yaml").is_file() and (tmp_path / "flows/connections.yaml").is_file()
    again = CliRunner().invoke(cli, words)
    assert again.exit_code != 0 and "exists already" in again.output


FLOW = """\
flow: bill
input: {order: {id: integer, total: number}}
key: k:{order.id}
uses: [books]
steps:
  - step: customer
    http: PUT books /customers/{order.id}
    repeat: never
  - step: invoice
    http: POST books /invoices
    json: {external_id: =order.id}
    repeat: never
  - step: charge
    http: POST books /charges
    repeat: never
  - step: other
    http: POST books /elsewhere
    repeat: never
"""
SPEC: dict[str, Any] = {
    "paths": {
        "/v1/customers/{id}": {"put": {}},
        "/v1/invoices": {"post": {}, "get": {"parameters": [{"name": "external_id", "in": "query"}]}},
        "/v1/charges": {"post": {"parameters": [{"$ref": "#/components/parameters/Key"}]}},
    },
    "components": {"parameters": {"Key": {"name": "Idempotency-Key", "in": "header"}}},
}


def test_a_document_says_how_requests_may_be_repeated(tmp_path: Path):
    customer, invoice, charge = suggest_repeats(read_flow(FLOW), SPEC)
    assert (customer.step, customer.repeat, customer.line) == ("customer", "safe", 6)
    assert invoice.repeat["check"] == "GET books /v1/invoices?external_id={order.id}"
    assert charge.repeat == {"keyed": "Idempotency-Key"}
    (tmp_path / "bill.flow.yaml").write_text(FLOW)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    words = ["flows", "suggest", str(tmp_path / "bill.flow.yaml"), "--openapi", str(tmp_path / "spec.yaml")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0 and 'bill.flow.yaml:13: charge: repeat: {keyed: "Idempotency-Key"}' in done.output
    with pytest.raises(Misuse, match="no OpenAPI document"):
        suggest_repeats(read_flow(FLOW), {})


# -- nothing is changed silently -----------------------------------------------------------------


def imported(*nodes: dict[str, Any]) -> Any:
    links = chain(*((one["name"], [[other["name"]]]) for one, other in itertools.pairwise(nodes)))
    return import_n8n({"name": "Bill", "nodes": list(nodes), "connections": links})


@pytest.mark.parametrize(
    ("rule", "trigger"),
    [
        ({"field": "cronExpression", "expression": "0 2 * * 1"}, {"schedule": "0 2 * * 1"}),
        ({"field": "cronExpression", "expression": "0 30 2 * * 1"}, {"schedule": "30 2 * * 1"}),
        ({"triggerAtHour": 7, "triggerAtMinute": 15}, {"schedule": "15 7 * * *"}),
        ({"field": "minutes"}, {"every": "5m"}),
        ({"field": "hours", "hoursInterval": 6}, {"every": "6h"}),
    ],
)
def test_a_schedule_keeps_its_times(rule, trigger):
    made = imported(node("Daily", "scheduleTrigger", rule={"interval": [rule]}))
    assert made.data["on"] == [{**trigger, "give": {"event": '={"id": tick}'}}] and made.untranslated == ()


@pytest.mark.parametrize(
    "rule", [{"field": "weeks", "triggerAtDay": [1]}, {"field": "cronExpression", "expression": "*/5 0 2 * * *"}]
)
def test_a_schedule_that_is_not_translated_is_told(rule):
    (told,) = imported(node("Daily", "scheduleTrigger", rule={"interval": [rule]})).untranslated
    assert told.startswith("Daily: its times: write schedule")


def condition_of(value: str, **more: Any) -> str:
    tests = [
        {"leftValue": "={{ $json.body.name }}", "rightValue": value, "operator": {"operation": "equals"}},
        {"leftValue": "={{ $json.bodyguard }}", "rightValue": 5, "operator": {"operation": "gt"}},
    ]
    made = imported(node("Paid", "webhook"), node("If", "if", conditions={"conditions": tests, **more}))
    return str(made.data["steps"][0]["choose"][0]["when"])


def test_a_condition_means_what_it_meant():
    """A quote in a text does not end it, `or` stays `or`, and `bodyguard` is not the field `guard` of the body."""
    assert condition_of('a" or true or "') == 'event.name == "a\\" or true or \\"" and event.bodyguard > 5'
    assert condition_of("a", combinator="or") == 'event.name == "a" or event.bodyguard > 5'


def test_the_parts_of_a_request_are_kept_or_told():
    rows = {"parameters": [{"name": "q", "value": "={{ $json.body.id }}"}]}
    made = imported(
        node("Paid", "webhook"),
        node("Send it!", "httpRequest", url="https://api.crm.example/a", queryParameters=rows, headerParameters=rows),
        node("Send it?", "httpRequest", url="={{ $json.url }}", authentication="genericCredentialType"),
        node("Wait", "wait", amount="={{ $json.days }}", unit="days"),
    )
    first, second, wait = made.data["steps"]
    assert (first["step"], first["query"], first["headers"]) == ("send_it", {"q": "=event.id"}, {"q": "=event.id"})
    assert (second["step"], wait) == ("send_it_2", {"sleep": "1h"})
    assert [line.partition(":")[0] for line in made.untranslated] == ["Send it?", "Send it?", "Wait"]
    assert made.connections["service"] == {"live": {"http": "https://service.example"}}


@pytest.mark.parametrize(
    "workflow",
    [
        [1],
        {"nodes": [{"name": "a", "type": "n8n.cron", "parameters": {"rule": {"interval": "x"}}}]},
        {"nodes": [node("a", "webhook"), node("b", "noOp")], "connections": {"a": {"main": [["b"]]}}},
    ],
)
def test_what_is_not_built_like_a_workflow_is_refused_with_the_next_move(workflow):
    with pytest.raises(Misuse, match="with Download, as JSON"):
        import_n8n(workflow)
