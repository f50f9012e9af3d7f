"""The files for Power Automate and n8n, carried out by simulators of these tools against a live server."""

from __future__ import annotations

import json
import re

import pytest

from tests.acceptance.http_shop import HttpShop
from tests.acceptance.no_code import N8n, PowerAutomate
from twiceproof.server.connectors import n8n, power_automate

ORDER = {"operation": "ship", "key": "shop/order #17 ü", "payload": {"order": 17, "total": 12.5}}
RUN_1, RUN_2 = "7d1f2c58-94ab-4b0e-9c1d-5a52ac2c5a11", "e3b0c442-98fc-4c14-9afb-f4c8996fb924"


@pytest.fixture
def shop(tmp_path):
    made = HttpShop(tmp_path)
    yield made.start()
    made.kill()


# -- Power Automate ------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["https://hooks.example.com", "http://127.0.0.1:8321", "https://example.com/tp/"])
def test_the_connector_is_valid_openapi_2(url):
    validate = pytest.importorskip("openapi_spec_validator").validate
    validate(power_automate(url))


def test_every_action_and_field_has_a_name_for_people():
    for methods in power_automate("https://hooks.example.com")["paths"].values():
        for action in methods.values():
            assert action["summary"][0].isupper() and action["description"]
            assert set(action["responses"]) == {"200"}  # nobody has to branch on a status
            for parameter in action["parameters"]:
                if parameter["in"] == "body":
                    assert all(field["x-ms-summary"] for field in parameter["schema"]["properties"].values())
                elif parameter.get("x-ms-visibility") == "internal":
                    assert "default" in parameter  # Power Automate asks for one where nobody sees the field
                else:
                    assert parameter["x-ms-summary"]


def test_every_action_of_the_connector_is_a_route_of_the_server():
    from twiceproof.server.routes import ROUTES

    known = {(route.method, route.path) for route in ROUTES}
    paths = power_automate("https://hooks.example.com")["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} <= known


def test_a_flow_that_claims_an_order_first_ships_it_once(shop):
    flow = PowerAutomate(power_automate(shop.url), shop)
    which = {"operation": ORDER["operation"], "key": ORDER["key"]}
    shipped = []
    for _ in range(3):
        claim = flow("Claim once", **ORDER)
        if claim["claimed"]:
            shipped.append("P-1")
            assert flow("Mark as done", **which, token=claim["token"], result={"parcel": "P-1"})["state"] == "done"
        else:
            assert (claim["state"], claim["result"]) == ("done", {"parcel": "P-1"})
    assert shipped == ["P-1"]
    assert flow("Look at a claim", **which)["state"] == "done"


def test_a_flow_that_failed_is_tried_again(shop):
    flow = PowerAutomate(power_automate(shop.url), shop)
    which = {"operation": ORDER["operation"], "key": ORDER["key"]}
    claim = flow("Claim once", **ORDER)
    assert flow("Claim once", **ORDER)["claimed"] is False
    assert flow("Extend a claim", **which, token=claim["token"], lease="10m")["status"] == 200
    flow("Mark as failed", **which, token=claim["token"], error="no stock")
    again = flow("Claim once", **ORDER)
    assert (again["claimed"], again["attempt"]) == (True, 2)
    assert flow("Mark as done", **which, token=claim["token"])["status"] == 409


def test_a_request_that_power_automate_repeats_is_still_the_one_that_claimed(shop):
    flow = PowerAutomate(power_automate(shop.url), shop)
    first, repeated = (flow("Claim once", **ORDER, request_id=RUN_1) for _ in range(2))
    assert first["claimed"] and repeated["claimed"] and repeated["token"] == first["token"]
    assert flow("Claim once", **ORDER, request_id=RUN_2)["claimed"] is False


def test_the_request_id_is_among_the_fields_that_a_maker_sees():
    claim = power_automate("https://hooks.example.com")["paths"]["/v1/claims/{operation}/{key}"]["put"]
    fields = next(one["schema"]["properties"] for one in claim["parameters"] if one["in"] == "body")
    assert fields["request_id"]["x-ms-visibility"] == "important"


def test_a_connector_with_a_token_and_without(shop):
    token = shop.token("flow", "ingest")
    assert PowerAutomate(power_automate(shop.url), shop, token)("Claim once", **ORDER)["claimed"] is True
    with pytest.raises(AssertionError, match="401"):
        PowerAutomate(power_automate(shop.url), shop)("Claim once", **ORDER)


# -- n8n -----------------------------------------------------------------------------------------


def test_the_workflow_has_the_shape_that_n8n_imports():
    workflow = n8n("https://hooks.example.com")
    names = [node["name"] for node in workflow["nodes"]]
    assert len(set(names)) == len(names) and len({node["id"] for node in workflow["nodes"]}) == len(names)
    for node in workflow["nodes"]:
        assert {"id", "name", "type", "typeVersion", "position", "parameters"} <= node.keys()
        assert len(node["position"]) == 2
    for name, leads in workflow["connections"].items():
        assert name in names
        assert all(one["node"] in names and one["type"] == "main" for output in leads["main"] for one in output)
    assert json.loads(json.dumps(workflow)) == workflow and "Bearer" not in json.dumps(workflow)


def test_every_file_has_an_id_of_its_own_as_the_command_line_of_n8n_asks():
    """`n8n import:workflow` stores a file under its id: a shared one would overwrite what a maker made of the first."""
    first, second = (n8n("https://hooks.example.com")["id"] for _ in range(2))
    assert first != second and all(re.fullmatch(r"[0-9A-Za-z]{16}", one) for one in (first, second))


def test_a_workflow_run_three_times_works_once(shop):
    flow, shipped = N8n(n8n(shop.url), shop), []

    def work(item):
        shipped.append(1)
        return {"parcel": "P-1"}

    assert flow.run(work, **ORDER)[-1] == "Mark as done"
    for _ in range(2):
        assert flow.run(work, **ORDER)[-1].startswith("Not claimed")
    assert shipped == [1]
    assert shop("GET", "/v1/claims/ship/shop%2Forder%20%2317%20%C3%BC")["result"] == {"parcel": "P-1"}


def test_two_n8n_instances_that_count_their_executions_alike_do_an_order_once(shop):
    """Each database counts executions from 1, and both instances use one token of the server."""
    token, shipped = shop.token("n8n", "ingest"), []
    first, second = (N8n(n8n(shop.url), shop, token) for _ in range(2))

    def work(item):
        shipped.append("first")
        assert second.run(lambda item: shipped.append("second"), **ORDER)[-1].startswith("Not claimed")

    assert first.run(work, **ORDER)[-1] == "Mark as done"
    assert shipped == ["first"]


@pytest.mark.parametrize("lost", ["Claim once", "Mark as done"])
def test_a_workflow_that_lost_an_answer_does_its_work_and_the_next_one_does_not(shop, lost):
    flow, shipped = N8n(n8n(shop.url), shop), []
    assert flow.run(lambda item: shipped.append(1), **ORDER, lost=lost)[-1] == "Mark as done"
    assert flow.run(lambda item: shipped.append(2), **ORDER)[-1].startswith("Not claimed")
    assert shipped == [1]


def test_a_workflow_whose_work_failed_is_tried_again(shop):
    flow = N8n(n8n(shop.url), shop)

    def broken(item):
        raise ValueError("no stock")

    assert flow.run(broken, **ORDER)[-1] == "Mark as failed"
    assert flow.run(lambda item: {"parcel": "P-1"}, **ORDER)[-1] == "Mark as done"


def test_a_workflow_whose_order_is_stuck_or_used_for_another_does_not_end_in_green(shop):
    flow, address = N8n(n8n(shop.url), shop), "/v1/claims/ship/shop%2Forder%20%2317%20%C3%BC"
    token = shop("PUT", address, json.dumps({"payload": ORDER["payload"]}).encode())["token"]
    assert flow.run(lambda item: item, **ORDER)[-1].startswith("Not claimed")
    assert flow.run(lambda item: item, **{**ORDER, "payload": {"order": 18}})[-1] == "Stop: needs a person"
    assert flow.error.startswith("Use another key")
    shop("POST", f"{address}/fail", json.dumps({"token": token, "error": "no answer", "unknown": True}).encode())
    assert flow.run(lambda item: item, **ORDER)[-1] == "Stop: needs a person"
    assert "settle it" in flow.error


def test_a_workflow_as_it_is_imported_runs(shop):
    assert N8n(n8n(shop.url), shop).run(lambda item: item)[-1] == "Mark as done"
