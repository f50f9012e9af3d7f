"""The description is made from the routes, and says neither less nor more."""

import re
from urllib.parse import quote

import msgspec
import pytest
from openapi_spec_validator import validate

from twiceproof import Misuse
from twiceproof.claims.claim import validate_name
from twiceproof.flows.history.queries import ALL, EVERY_STATE
from twiceproof.keys import validate_key
from twiceproof.keys.duration import seconds
from twiceproof.server.auth import POLICY
from twiceproof.server.openapi import KEY, KEY_OR_NONE, OPERATION, SPAN, description
from twiceproof.server.routes import ROUTES
from twiceproof.server.services.claim_messages import ClaimEnded, ClaimView, PriorClaim, Renewed
from twiceproof.server.services.claim_service import refuse_reserved
from twiceproof.server.tokens import Scope


@pytest.fixture(scope="module")
def described():
    return description(ROUTES)


def test_it_is_openapi_3_1(described):
    assert described["openapi"] == "3.1.0"
    validate(described)


def test_every_route_is_in_it_and_everything_in_it_is_a_route(described):
    in_it = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert in_it == {(route.method, route.path) for route in ROUTES}


def test_it_is_what_the_server_tells(server, described):
    assert server.call("GET", "/openapi.json").json == described


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_says_what_it_is_for_and_what_it_answers(described, route):
    operation = described["paths"][route.path][route.method.lower()]
    assert operation["summary"]
    assert any(status < "300" for status in operation["responses"])
    assert all(parameter["description"] for parameter in operation.get("parameters", []) if parameter["in"] == "path")
    scope = POLICY[route.method, route.path]
    assert ({"token": []} in operation["security"]) == (scope is not Scope.OPEN)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.body is not None], ids=lambda route: route.name)
def test_a_body_is_needed_where_one_of_its_fields_is(described, route):
    operation = described["paths"][route.path][route.method.lower()]
    needed = any(field.required for field in msgspec.structs.fields(route.body))
    assert operation["requestBody"]["required"] is needed


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("get", "", ClaimView),
        ("put", "", PriorClaim),
        ("post", "/complete", ClaimEnded),
        ("post", "/fail", ClaimEnded),
        ("post", "/renew", Renewed),
    ],
)
def test_an_answer_about_a_claim_has_all_its_fields_in_it(described, method, path, kind):
    answer = described["paths"]["/v1/claims/{operation}/{key}" + path][method]["responses"]["200"]
    names = [one["$ref"].rpartition("/")[2] for one in answer["content"]["application/json"]["schema"]["anyOf"]]
    assert names == [kind.__name__, "Outcome"]
    fields = {field.encode_name for field in msgspec.structs.fields(kind)}
    assert fields == described["components"]["schemas"][kind.__name__]["properties"].keys()


def test_the_headers_that_a_start_looks_at_are_told(described):
    parameters = described["paths"]["/v1/runs/{name}"]["post"]["parameters"]
    assert {one["name"] for one in parameters if one["in"] == "header"} == {"Idempotency-Key", "X-Correlation-Id"}


def test_the_states_that_can_be_asked_for_are_told(described):
    parameters = described["paths"]["/v1/runs"]["get"]["parameters"]
    state = next(one["schema"] for one in parameters if one["name"] == "state")
    assert state["enum"] == ["", ALL, *EVERY_STATE]


NAMES = ["ship", "a.b", "A-1_@x", "x" * 128, "https", "starting", "letters", "hooks.a"]
NO_NAMES = ["", "a b", "ü", "a/b", "x" * 129, "hook.a", "start.pay", "PUT.x", "http", "@slots", "a@letters"]


@pytest.mark.parametrize("name", [*NAMES, *NO_NAMES])
def test_an_operation_is_described_as_it_is_taken(name):
    try:
        refuse_reserved(validate_name("operation", name), ())
        taken = True
    except Misuse:
        taken = False
    assert taken is (name in NAMES) is bool(re.search(OPERATION["pattern"], name))


KEYS = ["a", "a b", "ü", "order:17", "a\u200bb"]
NO_KEYS = [" a", "a ", "\u00a0", "a\nb", "\x7f", "a\u2028b", ""]


@pytest.mark.parametrize("key", [*KEYS, *NO_KEYS])
def test_a_key_is_described_as_it_is_taken(key):
    try:
        taken = bool(validate_key(key))
    except Misuse:
        taken = False
    assert taken is (key in KEYS) is bool(re.search(KEY["pattern"], key))
    assert (taken or key == "") is bool(re.search(KEY_OR_NONE["pattern"], key))


SPANS = [
    "0s",
    "1.5 m",
    "30s",
    "2h",
    "100ms",
    "1w",
    "36499d",
    "36524.9d",
    "36526d",
    "1000000000000ms",
    "3153599999s",
    "3153600001.5 s",
    "99999999999s",
    "8449972d",
    "",
    "5",
    "s",
    "-1s",
    "1e3s",
    "forever",
]


@pytest.mark.parametrize("text", SPANS)
def test_a_wait_is_described_as_it_is_taken(text):
    try:
        taken = seconds(text, name="wait", positive=False) >= 0
    except Misuse:
        taken = False
    assert taken is bool(re.search(SPAN["pattern"], text))


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/flows/{name}"), ("POST", "/v1/flows/{name}/draft")])
@pytest.mark.parametrize("name", ["nothing", "x" * 128, "a b", "ü", "x" * 129])
def test_a_flows_name_is_described_as_it_is_taken(server, described, method, path, name):
    (schema,) = [one["schema"] for one in described["paths"][path][method.lower()]["parameters"]]
    status = server.call(method, path.replace("{name}", quote(name))).status
    assert status == (404 if re.search(schema["pattern"], name) else 400)


def test_a_flows_name_that_is_none_is_refused_in_both_lists(server):
    for path in ("/v1/runs", "/v1/approvals"):
        assert server.call("GET", f"{path}?flow=a%20b").status == 400
        assert server.call("GET", f"{path}?flow=sync").status == 200
