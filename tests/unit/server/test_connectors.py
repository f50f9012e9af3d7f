"""The connector file of Power Automate: Swagger 2.0, and the published rules for custom connectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV2SpecValidator
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

from twiceproof.server.connectors import power_automate

URLS = ["https://hooks.example.com", "http://127.0.0.1:8321", "https://example.com/tp/"]
PRODUCTS = ("Power Automate", "Power Apps", "Power Platform", "Logic Apps", "Copilot", "Microsoft")
VISIBILITIES = {"none", "important", "advanced", "internal"}
Shape = dict[str, Any]


@pytest.fixture
def shape() -> Shape:
    return power_automate(URLS[0])


def actions(shape: Shape) -> Iterator[tuple[str, Shape]]:
    for methods in shape["paths"].values():
        yield from methods.items()


def broken_rules(shape: Shape) -> list[str]:
    """The names of the rules that a file breaks, of those that a program can check."""
    told = [action for _, action in actions(shape)]
    ids = [action["operationId"] for action in told]
    found = [*_about_connector(shape["info"]), *(["unique ids"] if len({*ids}) < len(ids) else [])]
    for method, action in actions(shape):
        found += [*_about_action(action), *_about_parameters(method, action)]
    return sorted({*found})


def _about_connector(info: Shape) -> Iterator[str]:
    if len(info["title"]) > 30 or not 30 <= len(info["description"]) <= 500:
        yield "length of title and description"
    for text in (info["title"], info["description"]):
        if re.search(r"\bAPI\b", text, re.IGNORECASE) or any(product in text for product in PRODUCTS):
            yield "words of title and description"


def _about_action(action: Shape) -> Iterator[str]:
    summary, about = action["summary"], action["description"]
    if len(summary) > 80 or "/" in summary or not summary[-1].isalnum() or not summary[0].isupper():
        yield "summary"
    if about == summary or not about.endswith("."):
        yield "description"
    if not re.fullmatch(r"([A-Z][a-z0-9]*)+", action["operationId"]):
        yield "operationId"
    good = [answer for status, answer in action["responses"].items() if status.startswith("2")]
    if not good or not all("schema" in answer and answer["description"] for answer in good):
        yield "answers"
    if action.get("x-ms-visibility", "none") not in VISIBILITIES:
        yield "visibility"


def _about_parameters(method: str, action: Shape) -> Iterator[str]:
    for one in action["parameters"]:
        if method == "get" and one["in"] in ("body", "formData"):
            yield "no body of a GET"
        if one["in"] == "path" and (one.get("x-ms-url-encoding") not in ("single", "double") or not one["required"]):
            yield "path parameters"
        fields = one["schema"]["properties"].values() if one["in"] == "body" else [one]
        for field in fields:
            yield from _about_field(field)


def _about_field(field: Shape) -> Iterator[str]:
    """A field that nobody sees needs no words, and a required one needs a value; every other is told of."""
    if field.get("x-ms-visibility", "none") not in VISIBILITIES:
        yield "visibility"
    if field.get("x-ms-visibility") == "internal":
        if field.get("required") and "default" not in field:
            yield "internal fields"
        return
    summary, about = field.get("x-ms-summary", ""), field.get("description", "")
    if not 0 < len(summary) <= 80 or not summary[0].isupper() or not about or about == summary:
        yield "words of fields"
    if len({*field.get("enum", [])}) < len(field.get("enum", [])):
        yield "unique values"


@pytest.mark.parametrize("url", URLS)
def test_the_file_is_swagger_2_for_a_validator_of_that_version(url):
    OpenAPIV2SpecValidator(power_automate(url)).validate()


def test_the_validator_refuses_what_is_not_swagger_2(shape):
    del next(actions(shape))[1]["responses"]
    with pytest.raises(OpenAPIValidationError):
        OpenAPIV2SpecValidator(shape).validate()


@pytest.mark.parametrize("url", URLS)
def test_the_file_keeps_the_published_rules_for_custom_connectors(url):
    assert broken_rules(power_automate(url)) == []


def test_the_way_to_sign_in_is_one_that_custom_connectors_have(shape):
    (way,) = shape["securityDefinitions"].values()
    assert way == {"type": "apiKey", "in": "header", "name": "Authorization"}
    assert shape["security"] == [{name: [] for name in shape["securityDefinitions"]}]


def _first(shape: Shape) -> Shape:
    return next(actions(shape))[1]


@pytest.mark.parametrize(
    ("rule", "breaks"),
    [
        ("length of title and description", lambda s: s["info"].update(title="T" * 31)),
        ("words of title and description", lambda s: s["info"].update(title="Twiceproof API")),
        ("summary", lambda s: _first(s).update(summary="Claim once.")),
        ("description", lambda s: _first(s).update(description=_first(s)["summary"])),
        ("operationId", lambda s: _first(s).update(operationId="claim_once")),
        ("unique ids", lambda s: [action.update(operationId="Claim") for _, action in actions(s)]),
        ("answers", lambda s: _first(s).update(responses={"default": {"description": "x"}})),
        ("path parameters", lambda s: s["paths"].update(x={"put": _without(_first(s), "x-ms-url-encoding")})),
        ("no body of a GET", lambda s: s["paths"].update(x={"get": {**_first(s), "operationId": "X"}})),
        ("visibility", lambda s: _first(s).update({"x-ms-visibility": "hidden"})),
        ("words of fields", lambda s: s["paths"].update(x={"put": _without(_first(s), "x-ms-summary")})),
        ("internal fields", lambda s: s["paths"].update(x={"put": _without(_first(s), "default")})),
    ],
)
def test_a_file_that_breaks_a_rule_is_found(shape, rule: str, breaks: Callable[[Shape], Any]):
    breaks(shape)
    assert broken_rules(shape) == [rule]


def _without(action: Shape, name: str) -> Shape:
    """A copy of an action whose parameters in path and query lack a field."""
    parameters = [{key: value for key, value in one.items() if key != name} for one in action["parameters"]]
    return {**action, "operationId": "X", "parameters": parameters}
