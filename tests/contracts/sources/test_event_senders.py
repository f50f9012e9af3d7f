"""CloudEvents, Event Grid and Dataverse: senders that sign nothing, and how their events are told apart."""

from __future__ import annotations

import msgspec
import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from msgspec import structs

from twiceproof import Misuse
from twiceproof.inbound.source import Envelope, Handshake, Poison
from twiceproof.inbound.sources import find_source
from twiceproof.prove.source_contract.case import NOW, SECRET

BINARY = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/shop", "ce-type": "paid"}


def event(data, **more):
    return CloudEvent({"id": "e 1", "source": "/shop/é", "type": "order.paid", "specversion": "1.0", **more}, data)


def read(message):
    headers = {name.lower(): value for name, value in message.headers.items()}
    body = message.body if isinstance(message.body, bytes) else message.body.encode()
    return find_source("cloudevents").read(Envelope("cloudevents", body, headers))


@pytest.mark.parametrize("data", [{"order": 1}, None, "text", [1, 2]])
def test_what_the_reference_sends_structured_is_read(data):
    (found,) = read(to_structured_event(event(data, datacontenttype="application/json", tenant="x")))
    assert (found.id, found.type, found.payload["tenant"]) == ("/shop/é:e 1", "order.paid", "x")
    assert found.payload.get("data") == data


@pytest.mark.parametrize("data", [{"order": 1}, {"ü": [1]}])
def test_what_the_reference_sends_binary_says_the_same_as_structured(data):
    made = event(data, datacontenttype="application/json", tenant="x")
    (binary,), (structured,) = read(to_binary_event(made)), read(to_structured_event(made))
    assert binary.id == structured.id
    assert binary.payload | {"time": ""} == structured.payload | {"time": ""}


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("text/plain", b"hello", {"data": "hello"}),
        ("text/plain", b"\xff", {"data_base64": "/w=="}),
        ("application/octet-stream", b"\0\1", {"data_base64": "AAE="}),
        ("application/vnd.shop+json", b"[1]", {"data": [1]}),
    ],
)
def test_binary_data_is_kept_as_what_it_is(kind, body, said):
    sent = Envelope("cloudevents", body, {**BINARY, "content-type": kind})
    (found,) = find_source("cloudevents").read(sent)
    assert {
        name: value for name, value in found.payload.items() if name.startswith("data") and "type" not in name
    } == said


def test_spoilt_binary_json_is_poison():
    sent = Envelope("cloudevents", b'{"a":1,"a":2}', {**BINARY, "content-type": "application/json"})
    assert isinstance(find_source("cloudevents").read(sent), Poison)


@pytest.mark.parametrize("missing", ["ce-id", "ce-source", "ce-type", "ce-specversion"])
def test_a_binary_event_without_an_attribute_is_poison(missing):
    headers = {name: value for name, value in BINARY.items() if name != missing}
    assert isinstance(find_source("cloudevents").read(Envelope("cloudevents", b"", headers)), Poison)


def test_a_binary_event_may_have_no_body():
    (found,) = find_source("cloudevents").read(Envelope("cloudevents", b"", BINARY))
    assert found.id == "/shop:1"


def test_another_version_of_the_format_is_poison():
    sent = Envelope("cloudevents", b"", {**BINARY, "ce-specversion": "0.3"})
    assert isinstance(find_source("cloudevents").read(sent), Poison)


def test_source_and_id_together_name_an_event_and_cannot_be_confused():
    source = find_source("cloudevents")
    first, second = (
        source.read(Envelope("cloudevents", b"", {**BINARY, "ce-source": where, "ce-id": name}))[0].id
        for where, name in (("a:b", "c"), ("a", "b:c"))
    )
    assert first != second


def test_a_very_long_id_is_claimed_by_its_hash():
    source = find_source("cloudevents")
    names = [
        source.read(Envelope("cloudevents", b"", {**BINARY, "ce-id": "x" * 5_000 + end}))[0].id
        for end in ("1", "2", "1")
    ]
    assert names[0] == names[2] != names[1]
    assert len(names[0]) < 100


# -- who may send at all ----------------------------------------------------------------------------


def asked(origin: str) -> Envelope:
    return Envelope(
        "event_grid", b"", {"webhook-request-origin": origin, "webhook-request-rate": "120"}, method="OPTIONS"
    )


@pytest.mark.parametrize("name", ["cloudevents", "event_grid"])
def test_a_sender_that_asks_first_is_told_yes(name):
    answer = find_source(name).greet(asked("eventgrid.azure.net"))
    assert isinstance(answer, Handshake)
    assert answer.reply.status == 200
    assert answer.reply.header("webhook-allowed-origin") == "eventgrid.azure.net"
    assert answer.reply.header("webhook-allowed-rate") == "*"


def test_only_the_origins_that_were_named_are_told_yes():
    source = find_source("event_grid", origins=["eventgrid.azure.net"])
    assert source.greet(asked("eventgrid.azure.net")).reply.header("webhook-allowed-origin")
    for other in ("evil.example", "", "a b", "x\r\ny", "é" * 10):
        assert source.greet(asked(other)).reply.header("webhook-allowed-origin") == ""
        assert source.greet(asked(other)).reply.status == 200


@pytest.mark.parametrize("odd", ["", "a b", "x\r\ny", "é", "a" * 256])
def test_what_is_no_host_is_not_echoed(odd):
    assert find_source("event_grid").greet(asked(odd)).reply.header("webhook-allowed-origin") == ""


# -- the shared secret ------------------------------------------------------------------------------


def test_two_secrets_in_one_url_are_refused():
    source = find_source("event_grid")
    sent = source.sample(SECRET, NOW)
    assert source.verify(sent, [SECRET], NOW) == ""
    for both in (f"code=x&{sent.query}", f"{sent.query}&code=x", f"{sent.query}&{sent.query}"):
        assert source.verify(structs.replace(sent, query=both), [SECRET], NOW)


def test_a_secret_in_the_url_is_found_in_the_whole_url_too():
    source = find_source("dataverse")
    sent = source.sample(SECRET, NOW)
    whole = structs.replace(sent, query="", url=f"https://shop.example/hooks/dataverse?{sent.query}")
    assert source.verify(whole, [SECRET], NOW) == ""


def test_a_secret_in_a_header_is_not_looked_for_in_the_url():
    source = find_source("dataverse", header="X-Key")
    assert source.verify(source.sample(SECRET, NOW), [SECRET], NOW) == ""
    assert source.verify(find_source("dataverse").sample(SECRET, NOW), [SECRET], NOW)


def test_a_bearer_of_nothing_is_not_believed():
    source = find_source("dataverse", header="Authorization")
    sent = source.sample(SECRET, NOW)
    assert source.verify(sent, ["", SECRET], NOW) == ""
    assert source.verify(structs.replace(sent, headers={"authorization": "Bearer "}), ["", SECRET], NOW)


def test_a_parameter_of_another_name_can_be_told():
    source = find_source("dataverse", parameter="key")
    assert source.verify(source.sample(SECRET, NOW), [SECRET], NOW) == ""
    assert source.verify(find_source("dataverse").sample(SECRET, NOW), [SECRET], NOW)


def test_a_sender_that_signs_nothing_needs_a_place_for_its_secret():
    with pytest.raises(Misuse, match="parameter="):
        find_source("event_grid", parameter="")


# -- Event Grid -------------------------------------------------------------------------------------


def test_event_grids_validation_is_answered_with_its_code():
    source = find_source("event_grid")
    item = {
        "id": "2d1781af",
        "topic": "/subscriptions/x",
        "subject": "",
        "data": {"validationCode": "512d38b6"},
        "eventType": "Microsoft.EventGrid.SubscriptionValidationEvent",
    }
    sent = source.seal(msgspec.json.encode([item]), SECRET, NOW)
    sent = structs.replace(sent, headers={**sent.headers, "aeg-event-type": "SubscriptionValidation"})
    assert source.verify(sent, [SECRET], NOW) == ""
    reading = source.read(sent)
    assert isinstance(reading, Handshake)
    assert (reading.reply.status, reading.reply.body) == (200, b'{"validationResponse":"512d38b6"}')
    assert isinstance(source.read(structs.replace(sent, body=b"[]")), Poison)


def test_event_grids_farewell_is_acknowledged():
    sent = find_source("event_grid").sample(SECRET, NOW)
    sent = structs.replace(sent, headers={**sent.headers, "aeg-event-type": "SubscriptionDeletion"})
    assert isinstance(find_source("event_grid").read(sent), Handshake)


def grid(count: int) -> Envelope:
    source = find_source("event_grid")
    return source.seal(source.example([{"data": number} for number in range(count)]), SECRET, NOW)


def test_event_grid_sends_up_to_five_thousand_events_at_once():
    events = find_source("event_grid").read(grid(5_000))
    assert len({event.id for event in events}) == 5_000
    assert isinstance(find_source("event_grid").read(grid(5_001)), Poison)


def test_event_grid_also_speaks_cloudevents():
    one = find_source("cloudevents")
    for sent in (one.sample(SECRET, NOW), one.seal(b"[" + one.example() + b"]", SECRET, NOW)):
        assert find_source("event_grid").read(sent) == one.read(sent)
    binary = Envelope("event_grid", b"{}", {**BINARY, "content-type": "application/json"})
    assert find_source("event_grid").read(binary) == one.read(binary)


@pytest.mark.parametrize("name", ["event_grid", "cloudevents"])
def test_one_event_without_an_id_is_poison_among_its_neighbours(name):
    source = find_source(name)
    body = msgspec.json.encode([*msgspec.json.decode(b"[" + source.example().strip(b"[]") + b"]"), {"data": 1}])
    good, spoilt = source.read(source.seal(body, SECRET, NOW))
    assert (good.payload["id"], type(spoilt)) == (msgspec.json.decode(body)[0]["id"], Poison)


# -- Dataverse --------------------------------------------------------------------------------------


def context(**more) -> Envelope:
    source = find_source("dataverse")
    return source.seal(source.example({"InputParameters": [], **more}), SECRET, NOW)


def name_of(**more) -> str:
    return find_source("dataverse").read(context(**more))[0].id


def test_a_dataverse_event_is_named_by_organisation_operation_message_row_and_step():
    base = {"OperationId": "11111111-0000-4000-8000-000000000001"}
    first = name_of(**base)
    assert first == name_of(**base)
    for other in (
        {"OrganizationId": "o2"},
        {"OperationId": "op2"},
        {"MessageName": "Create"},
        {"PrimaryEntityId": "e2"},
        {"OwningExtension": {"Id": "step2"}},
    ):
        assert name_of(**{**base, **other}) != first


def test_a_synchronous_step_has_no_operation_and_is_named_by_all_it_says():
    nobody = {"OperationId": "00000000-0000-0000-0000-000000000000"}
    first, other = name_of(**nobody, CorrelationId="c1"), name_of(**nobody, CorrelationId="c2")
    assert first == name_of(**nobody, CorrelationId="c1") != other


def test_what_dataverse_left_out_is_told_to_the_flow():
    source, sent = find_source("dataverse"), context()
    cut = structs.replace(sent, headers={**sent.headers, "x-ms-dynamics-msg-size-exceeded": "true"})
    assert source.read(cut)[0].payload["MessageSizeExceeded"] is True
    assert "MessageSizeExceeded" not in source.read(sent)[0].payload
    assert source.read(cut)[0].id == source.read(sent)[0].id


def test_a_dataverse_event_says_what_happened_to_what():
    assert find_source("dataverse").read(context())[0].type == "account.Update"
