"""The pages about HTTP: their commands run against a live server, and their tables are the routes as they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.acceptance.http_shop import HttpShop
from tests.acceptance.no_code import PowerAutomate
from tests.docs.blocks import ROOT, blocks, commands, says
from twiceproof.claims.views import ClaimPage
from twiceproof.server.auth import POLICY
from twiceproof.server.connectors import power_automate
from twiceproof.server.routes import ROUTES as ALL
from twiceproof.server.routes import claims
from twiceproof.server.services.claim_messages import Claimed, ClaimEnded, ClaimView, PriorClaim, Renewed
from twiceproof.server.tokens import Scope

pytestmark = pytest.mark.slow

HOW_TO = ROOT / "docs/how-to"
PAGE = (ROOT / "docs/reference/http.md").read_text("utf-8")
ROUTES = [route for route in ALL if route.path.startswith("/v1/")]
ANSWERS = {
    "list_claims": (ClaimPage,),
    "claim": (Claimed, PriorClaim),
    "look_at_claim": (ClaimView,),
    "complete_claim": (ClaimEnded,),
    "fail_claim": (ClaimEnded,),
    "renew_claim": (Renewed,),
}
RUN, ANOTHER = "7d1f2c58-94ab-4b0e-9c1d-5a52ac2c5a11", "e3b0c442-98fc-4c14-9afb-f4c8996fb924"
NO_CODE = sorted((HOW_TO / "no-code").glob("*.md"))


@pytest.fixture
def shop(tmp_path):
    made = HttpShop(tmp_path)
    yield made
    made.kill()


def run_all(document, folder, url):
    """All commands in one shell, as a reader would; each followed by a mark."""
    consoles = [block for block in blocks(document) if block.language == "console"]
    listed = [command for block in consoles for command in commands(block)]
    assert listed
    script = "\n".join(f"{typed}\nprintf '\\036'" for typed, _ in listed).replace("http://127.0.0.1:8000", url)
    home = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{home}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    heard = done.stdout.split("\036")
    assert len(heard) == len(listed) + 1, done.stderr
    for (typed, said), answer in zip(listed, heard, strict=False):
        assert says(said, answer), (typed, answer, done.stderr)


def test_the_commands_of_claim_over_http_do_what_they_say(shop):
    page = HOW_TO / "claim-over-http.md"
    (python,) = [block.text for block in blocks(page) if block.language == "python"]
    (shop.folder / "shop.py").write_text(python)
    shop.start()
    run_all(page, shop.folder, shop.url)


@pytest.mark.parametrize("page", NO_CODE, ids=lambda path: path.stem)
def test_the_commands_of_a_page_for_makers_do_what_they_say(page, tmp_path):
    run_all(page, tmp_path, "http://127.0.0.1:8000")


def test_what_the_page_has_power_automate_fill_in_outlives_its_own_retries(shop):
    """It repeats a request four times by itself; the fields are those that the page names."""
    shop.start()
    text = (HOW_TO / "no-code/power-automate.md").read_text("utf-8")
    flow = PowerAutomate(power_automate(shop.url), shop)
    schema = next(one["schema"] for one in flow.actions["Claim once"][2]["parameters"] if one["in"] == "body")
    named = {field["x-ms-summary"]: name for name, field in schema["properties"].items()}
    step = text.partition("→ **Claim once**")[2].partition("\n3. ")[0]
    filled = {"payload": {"order": 17}, "lease": "30m", "request_id": RUN, "repeat": "never", "link": "x"}
    given = {named[label]: filled[named[label]] for label in re.findall(r"- \*\*(.+?)\*\*", step) if label in named}
    answers = [flow("Claim once", operation="ship", key="order-17", **given) for _ in range(2)]
    assert [one["claimed"] for one in answers] == [True, True]


@pytest.mark.parametrize("tool", ["power-automate", "make"])
def test_what_a_page_has_a_tool_look_at_tells_what_is_stuck_from_what_is_cared_for(tool, shop):
    """A flow that ends in green over an order that nobody does any more has lost it."""
    text = (HOW_TO / f"no-code/{tool}.md").read_text("utf-8")
    rows = re.findall(r"\*\*(?:Data: )?(status|state)\*\*\s\*(?:is\s+not\s)?equal\sto\*\s+`(\w+)`", text, re.I)
    assert len(rows) == 3

    def stuck(key, body=b"{}"):
        answer = shop("PUT", f"/v1/claims/ship/{key}?always200=true", body)
        return any(str(answer[field.lower()]) == value for field, value in rows)

    shop.start()
    tokens = {key: shop("PUT", f"/v1/claims/ship/{key}", b'{"payload": 1}')["token"] for key in "abcd"}
    ends = {"b": ("complete", {}), "c": ("fail", {"unknown": True}), "d": ("fail", {"retryable": False})}
    for key, (end, more) in ends.items():
        shop("POST", f"/v1/claims/ship/{key}/{end}", json.dumps({"token": tokens[key], **more}).encode())
    assert [stuck(key) for key in "abcd"] == [False, False, True, True]
    assert [stuck(key, b'{"payload": 2}') for key in "ab"] == [True, True]


@pytest.mark.parametrize("tool", ["zapier", "make"])
def test_what_a_page_has_a_tool_send_claims_once_and_completes(tool, shop):
    """The bodies and addresses of the page, filled in as the tool would."""
    text = (HOW_TO / f"no-code/{tool}.md").read_text("utf-8")
    shop.start()
    written = re.search(r'\{"lease": "30m".*?\}(?=`)', text)[0]
    claim = re.sub(r'("request_id": ")(…|\{\{.*?\}\})"', rf'\g<1>{RUN}"', written)
    assert claim != written
    complete = next(body for body in re.findall(r'`(\{"token".*?\})`', text) if "result" in body)
    path = re.search(r"https://hooks\.example\.com(/v1/claims/ship/)", text)[1] + "order-17"
    first = shop("PUT", f"{path}?always200=true", claim.encode())
    assert first["claimed"] is True
    assert shop("PUT", f"{path}?always200=true", claim.encode())["claimed"] is True  # its answer was lost
    another = claim.replace(RUN, ANOTHER)
    assert shop("PUT", f"{path}?always200=true", another.encode())["claimed"] is False
    sent = re.sub(r'("token": ")(…|\{\{.*?\}\})"', lambda found: f'{found[1]}{first["token"]}"', complete)
    assert shop("POST", f"{path}/complete?always200=true", sent.encode()).status == 200
    again = shop("PUT", f"{path}?always200=true", claim.encode())
    assert (again["claimed"], again["result"]) == (False, "shipped")


def row(route):
    return next((line for line in PAGE.splitlines() if line.startswith(f"| `{route.method} {route.path}` |")), "")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_is_in_a_table_with_its_scope_its_fields_and_its_statuses(route):
    line = row(route)
    assert line
    scope = POLICY[route.method, route.path]
    assert ("proven" if scope is Scope.PROVEN else f"`{scope.value}`") in line
    for kind in (route.body, route.query):
        for field in msgspec.structs.fields(kind) if kind is not None else ():
            assert (
                f"`{field.name}`" in line
                or f"?{field.name}" in line
                or "as by id" in line
                or (f"?{field.name}=" in PAGE)
            ), field.name
    for status in route.answers:
        assert str(status) in line or "as by id" in line, status


@pytest.mark.parametrize("route", [*claims.ROUTES], ids=lambda route: route.name)
def test_every_field_of_an_answer_about_claims_is_named(route):
    for kind in ANSWERS[route.name]:
        for field in msgspec.structs.fields(kind):
            assert f"`{field.name}`" in row(route), field.name


def test_the_page_names_no_route_that_there_is_not():
    told = set(re.findall(r"^\| `(\w+) (/v1/[^`]+)` \|", PAGE, re.M))
    assert told == {(route.method, route.path) for route in ROUTES}


def test_every_problem_of_a_door_has_a_next_move(shop):
    shop.start()
    wrong = [
        "PUT /v1/claims/a%20b/k",
        "GET /v1/claims/a/k",
        "GET /v1/runs/run_x",
        "POST /v1/runs/none",
        "POST /v1/callbacks/x",
        "GET /v1/approvals/x",
        "GET /v1/approvals/link/x",
    ]
    for method, path in map(str.split, wrong):
        heard = shop(method, path)
        shape = json.loads(heard.body)
        assert shape["next"] and shape["detail"] and shape["status"] == heard.status
