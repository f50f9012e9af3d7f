"""The gate and what passes it: each condition with its own sentence; promotions, rollbacks, two people at once."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.unit.declared.releasing import TENANT, greet, make_live
from twiceproof import App, Misuse, load_flows
from twiceproof.declared import releases
from twiceproof.declared.connections import Connections
from twiceproof.declared.promotion import (
    Promotion,
    Releaser,
    agree,
    pause,
    plan_promotion,
    promote,
    remembered_keys,
    rollback,
)
from twiceproof.declared.releases import (
    FlowProof,
    FlowRelease,
    TestProof,
    keep_proof,
    list_changes,
    live_of,
    live_record,
    push,
    push_release,
)
from twiceproof.operations import block
from twiceproof.stores.base import Store
from twiceproof.stores.open import open_store
from twiceproof.version import __version__

ADA, BOB = Releaser("ada"), Releaser("bob")
STEPS = "  - set: {said: =id}\n"
TESTS = "tests:\n  - {name: one, input: {id: a}}\n"
PLAYED = (TestProof("one", 92, 92, True),)


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue("postgres_dsn")
    made = open_store(url)
    yield made
    made.close()


@pytest.fixture
def memory() -> Iterator[Store]:
    made = open_store("memory://")
    yield made
    made.close()


def pushed(store: Store, text: str, *, tested: bool = True, tenant: str = TENANT) -> FlowRelease:
    return block(push(store, tenant, text + (TESTS if tested else ""), by="ada"))[0]


def proof_of_it(release: FlowRelease, tenant: str = TENANT, **changes: Any) -> FlowProof:
    made = FlowProof(
        release.flow, tenant, release.hash, release.tests, dict(release.functions), __version__, 2, PLAYED, by="ci"
    )
    return structs.replace(made, **changes)


def proved(store: Store, text: str, tenant: str = TENANT) -> FlowRelease:
    release = pushed(store, text, tenant=tenant)
    block(keep_proof(store, proof_of_it(release, tenant)))
    return release


def plan(store: Store, who: Releaser = ADA, **given: Any) -> Promotion:
    return block(plan_promotion(store, TENANT, "greet", who, **given))


def refusals(store: Store, **given: Any) -> list[str]:
    return [check.found for check in plan(store, **given).refused]


# -- evidence ------------------------------------------------------------------------------------


def test_a_proved_content_is_promoted_by_one_write(store):
    release = proved(store, greet("one", steps=STEPS))
    live = block(promote(store, plan(store), ADA, note="first"))
    assert (live.hash, live.number, live.by, live.note) == (release.hash, 1, "ada", "first")
    assert block(live_of(store, TENANT, "greet")) == live
    (change,) = block(list_changes(store, TENANT, "greet"))
    assert (change.what, change.by, change.evidence) == ("promote", "ada", "92 scenarios of 1 test")


def test_without_evidence_nothing_is_promoted_and_nothing_is_written(memory):
    release = pushed(memory, greet("one", steps=STEPS))
    assert refusals(memory) == [f"there is no evidence for this content ({release.hash[:12]})"]
    with pytest.raises(Misuse, match="there is no evidence"):
        block(promote(memory, plan(memory), ADA))
    assert block(live_record(memory, TENANT, "greet")) is None


def test_evidence_of_another_content_counts_for_nothing(memory):
    proved(memory, greet("one", steps=STEPS))
    release = pushed(memory, greet("two", steps=STEPS))
    assert refusals(memory) == [f"there is no evidence for this content ({release.hash[:12]})"]
    other = proof_of_it(release, hash="f" * 64)
    at = releases.Address(releases.space_of_flow(TENANT, "greet"), releases.PROOF_KIND, release.hash)
    memory.write(releases.Insert(at, releases._json(other))).block()
    assert refusals(memory) == [f"the evidence is for another content (ffffffffffff, and not {release.hash[:12]})"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tests": "0" * 64}, "the evidence is for other tests than the content has"),
        ({"package": "99.1.0"}, f"the evidence was made with version 99.1.0 of twiceproof, and this is {__version__}"),
        ({"functions": {"shop:bill": "0"}}, "the evidence was made with other code of shop:bill than is here"),
        ({"depth": 1}, "it was run to depth 1, and 2 is needed: kills during the recovery"),
        ({"results": ()}, "no test was run, so nothing is proved"),
        (
            {"results": (TestProof("one", 1, 1, True, (), (), True), TestProof("two", 1, 1, True, (), (), True))},
            "the event of every test starts nothing, so nothing is proved; add a test that starts a run",
        ),
        ({"results": (TestProof("one", 92, 92, False),)}, "the test 'one' is not safe to repeat"),
        ({"results": (TestProof("one", 92, 91, True),)}, "the test 'one' is incomplete: 91 of 92 scenarios were run"),
        ({"results": (TestProof("one", 0, 0, True),)}, "the test 'one' is incomplete: 0 of 0 scenarios were run"),
        (
            {"results": (TestProof("one", 92, 92, True, ("invoice",)),)},
            "in the test 'one' the effects of invoice were not observed",
        ),
        (
            {"results": (TestProof("one", 92, 92, True, (), ("mails: 1 expected, and 0 seen",)),)},
            "the test 'one' expects something else: mails: 1 expected, and 0 seen",
        ),
    ],
)
def test_evidence_that_says_less_is_refused_with_its_own_sentence(memory, changes, said):
    release = pushed(memory, greet("one", steps=STEPS))
    block(keep_proof(memory, proof_of_it(release, **changes)))
    assert refusals(memory) == [said]
    with pytest.raises(Misuse):
        block(promote(memory, plan(memory), ADA))


def test_a_test_whose_event_starts_nothing_is_evidence_beside_one_that_was_run(memory):
    release = pushed(memory, greet("one", steps=STEPS))
    results = (TestProof("other event", 1, 1, True, (), (), True), TestProof("one", 92, 92, True))
    block(keep_proof(memory, proof_of_it(release, results=results)))
    assert refusals(memory) == []


def test_the_evidence_of_another_tenant_is_not_there(memory):
    proved(memory, greet("one", steps=STEPS), tenant="acme")
    release = pushed(memory, greet("one", steps=STEPS))
    assert refusals(memory) == [f"there is no evidence for this content ({release.hash[:12]})"]
    at = releases.Address(releases.space_of_flow(TENANT, "greet"), releases.PROOF_KIND, release.hash)
    memory.write(releases.Insert(at, releases._json(proof_of_it(release, "acme")))).block()
    assert refusals(memory) == ["the evidence is for greet of the tenant acme, and not for greet of default"]


def test_new_tests_need_a_new_proof(memory):
    proved(memory, greet("one", steps=STEPS))
    block(push(memory, TENANT, greet("one", steps=STEPS) + TESTS.replace("id: a", "id: b"), by="ada"))
    assert refusals(memory) == ["the evidence is for other tests than the content has"]


def test_a_token_without_the_scope_changes_nothing(memory):
    proved(memory, greet("one", steps=STEPS))
    visitor = Releaser("ci", may=False)
    assert refusals(memory, who=visitor) == ["the token of ci lacks the scope release"]
    with pytest.raises(Misuse, match="scope release"):
        block(promote(memory, plan(memory), visitor))
    block(promote(memory, plan(memory), ADA))
    for change in (rollback, pause):
        with pytest.raises(Misuse, match="scope release"):
            block(change(memory, TENANT, "greet", visitor))


def test_evidence_that_is_replaced_after_the_look_stops_the_promotion(memory):
    release = proved(memory, greet("one", steps=STEPS))
    planned = plan(memory)
    block(keep_proof(memory, proof_of_it(release, results=(TestProof("one", 92, 92, False),))))
    with pytest.raises(Misuse, match="or its evidence, changed meanwhile"):
        block(promote(memory, planned, ADA))
    assert block(live_record(memory, TENANT, "greet")) is None


# -- code, connections, triggers, keys -----------------------------------------------------------


def test_other_code_of_a_called_function_asks_for_a_new_proof(memory, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "code_of_greet.py"
    module.write_text("def shout(text):\n    return text.upper()\n")
    proved(
        memory,
        greet("x", steps="  - step: said\n    call: code_of_greet:shout\n    with: {text: =id}\n    repeat: safe\n"),
    )
    assert refusals(memory) == []
    module.write_text("def shout(text):\n    return text.lower()\n")
    del sys.modules["code_of_greet"]
    assert refusals(memory) == ["the evidence was made with other code of code_of_greet:shout than is here"]


def connections(folder: Path, text: str) -> Connections:
    (folder / "connections.yaml").write_text(text)
    return Connections.read(folder / "connections.yaml")


LOOK = "  - step: look\n    http: GET books /x\n"


def test_the_live_sides_of_connections_must_be_there_and_answer(memory, tmp_path, monkeypatch):
    proved(memory, greet("one", more="uses: [books]\n", steps=LOOK))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        known = connections(tmp_path, f'books: {{live: {{http: "http://127.0.0.1:{port}", bearer: env:BOOKS}}}}\n')
        assert refusals(memory, connections=known) == ["books: env:BOOKS is not set"]
        monkeypatch.setenv("BOOKS", "canary-secret")
        assert refusals(memory, connections=known) == []
        assert "canary-secret" not in repr(plan(memory, connections=known))
    assert refusals(memory, connections=known) == [f"books: 127.0.0.1:{port} does not answer (Connection refused)"]


def test_a_connection_that_is_not_there_fails_lint_and_the_gate(memory):
    proved(memory, greet("one", more="uses: [books]\n", steps=LOOK))
    found = plan(memory, connections=Connections(file="connections.yaml")).refused
    assert {check.name for check in found} == {"lint", "connection"}


POST = "  - step: order\n    http: POST books /x\n    repeat: keyed\n  - fail: no\n    if: id == IF\n"


def test_a_warning_is_listed_and_refuses_nothing_and_an_error_beside_it_does(memory, tmp_path):
    known = connections(tmp_path, "books: {live: {http: http://127.0.0.1:9}}\n")
    proved(memory, greet("one", more="uses: [books]\n", steps=POST.replace("IF", '"a"')))
    (lint,) = (check for check in plan(memory, connections=known).checks if check.name == "lint")
    assert lint.ok and lint.found.startswith("no errors, 1 warning: 6:5: missing-undo: order creates something")
    proved(memory, greet("one", more="uses: [books]\n", steps=POST.replace("IF", "nobody")))
    (lint,) = (check for check in plan(memory, connections=known).checks if check.name == "lint")
    assert not lint.ok and "unknown-name: nobody" in lint.found and "warning" not in lint.found


def test_two_live_flows_cannot_share_a_webhook(memory, monkeypatch):
    monkeypatch.setenv("GREET_SECRET", "whsec_" + "a" * 32)
    hook = "on:\n  - webhook: generic\n    secret: env:GREET_SECRET\n    name: shop\n"
    hook += "    options: {id: id, signature: X-S}\n"
    other = greet("one", more=hook, steps=STEPS).replace("flow: greet", "flow: other")
    make_live(memory, other)
    proved(memory, greet("one", more=hook, steps=STEPS))
    assert refusals(memory) == ["/hooks/shop already starts other"]
    proved(memory, greet("one", more=hook.replace("name: shop", "name: greet"), steps=STEPS))
    assert refusals(memory) == []


def test_a_changed_key_needs_a_reason_and_is_told_with_its_number(tmp_path):
    with App(f"sqlite:///{tmp_path}/ledger.db") as app:
        (tmp_path / "greet.flow.yaml").write_text(greet("file", steps=STEPS))
        flow = load_flows(app, tmp_path)["greet"]
        make_live(app.store, greet("one", steps=STEPS))
        for name in "abc":
            flow(name)
        assert block(remembered_keys(app.store, TENANT, "greet")) == 3
        proved(app.store, greet("two", key="greeting:{id}", steps=STEPS))
        assert refusals(app.store) == [
            "the key changes from greet:{id} to greeting:{id}: late duplicates of 3 keys are done again"
        ]
        planned = plan(app.store, new_key="the shop renumbered its orders")
        assert planned.refused == [] and planned.remembered == 3
        block(promote(app.store, planned, ADA))
        change = block(list_changes(app.store, TENANT, "greet"))[-1]
        assert (change.new_key, change.forgotten) == ("the shop renumbered its orders", 3)


def test_another_spelling_of_the_same_key_is_the_same(memory):
    make_live(memory, greet("one", key="greet:{id.x}", steps=STEPS).replace("id: text", "id: {x: text}"))
    proved(memory, greet("two", key="greet:{id[x]}", steps=STEPS).replace("id: text", "id: {x: text}"))
    assert refusals(memory) == []


# -- changes of what is live ---------------------------------------------------------------------


def test_where_a_file_asks_for_a_second_person_nobody_promotes_alone(memory):
    proved(memory, greet("one", steps=STEPS, more="second: true\n"))
    assert refusals(memory) == ["no other person than ada has agreed to this content"]
    block(agree(memory, TENANT, "greet", ADA))
    assert refusals(memory) == ["no other person than ada has agreed to this content"]
    block(agree(memory, TENANT, "greet", Releaser("Ada")))  # the same person, written otherwise
    assert refusals(memory) == ["no other person than ada has agreed to this content"]
    block(agree(memory, TENANT, "greet", BOB, note="read it"))
    assert plan(memory).refused == [] and [one.found for one in plan(memory).checks if one.name == "second"] == [
        "bob agreed"
    ]
    with pytest.raises(Misuse, match="lacks the scope release"):
        block(agree(memory, TENANT, "greet", Releaser("eve", may=False)))
    block(promote(memory, plan(memory), ADA))
    # Neither another content, nor one without the line, gets round what is live.
    proved(memory, greet("two", steps=STEPS, more="second: true\n"))
    assert refusals(memory) == ["no other person than ada has agreed to this content"]
    proved(memory, greet("three", steps=STEPS))
    assert refusals(memory) == ["no other person than ada has agreed to this content"]


def test_of_two_people_who_promote_at_once_one_is_told_what_is_live(store):
    block(promote(store, _planned(store, "zero"), ADA))
    first, second = _planned(store, "one"), _planned(store, "two")
    won = block(promote(store, first, ADA))
    with pytest.raises(Misuse, match=rf"it is r2 \({won.hash[:12]}\), by ada now"):
        block(promote(store, second, BOB))
    assert block(live_of(store, TENANT, "greet")) == won
    assert [one.by for one in block(list_changes(store, TENANT, "greet"))] == ["ada", "ada"]


def _planned(store: Store, text: str) -> Promotion:
    release = proved(store, greet(text, steps=STEPS))
    return plan(store, which=release.hash)


def test_a_rollback_is_one_write_and_a_further_one_goes_forward_again(store):
    for text in ("one", "two"):
        block(promote(store, _planned(store, text), ADA))
    back = block(rollback(store, TENANT, "greet", BOB, note="it bills twice"))
    assert (back.number, back.last, back.by, back.note) == (1, 2, "bob", "it bills twice")
    assert block(rollback(store, TENANT, "greet", BOB)).number == 2
    assert block(rollback(store, TENANT, "greet", BOB, to="r1")).number == 1
    assert block(promote(store, _planned(store, "three"), ADA)).number == 3
    assert [one.what for one in block(list_changes(store, TENANT, "greet"))] == [
        *("promote", "promote", "rollback", "rollback", "rollback", "promote")
    ]


def test_a_rollback_goes_only_to_what_was_live(memory):
    with pytest.raises(Misuse, match="No release of greet is live"):
        block(rollback(memory, TENANT, "greet", ADA))
    block(promote(memory, _planned(memory, "one"), ADA))
    with pytest.raises(Misuse, match="has had no other release"):
        block(rollback(memory, TENANT, "greet", ADA))
    draft = pushed(memory, greet("two", steps=STEPS))
    with pytest.raises(Misuse, match="was never live"):
        block(rollback(memory, TENANT, "greet", ADA, to=draft.hash))


def test_the_same_content_keeps_its_number(memory):
    block(promote(memory, _planned(memory, "one"), ADA))
    assert block(promote(memory, _planned(memory, "one"), ADA)).changes == 1
    block(promote(memory, _planned(memory, "two"), ADA))
    assert block(promote(memory, _planned(memory, "one"), ADA)).number == 1


def test_pause_and_resume_are_recorded_once_each(memory):
    block(promote(memory, _planned(memory, "one"), ADA))
    for paused in (True, True, False, False):
        assert block(pause(memory, TENANT, "greet", BOB, paused=paused)).paused is paused
    assert [one.what for one in block(list_changes(memory, TENANT, "greet"))] == ["promote", "pause", "resume"]


def test_a_promotion_or_rollback_does_not_resume_a_paused_flow(memory):
    """The mail server for which it was paused is still away."""
    block(promote(memory, _planned(memory, "one"), ADA))
    block(pause(memory, TENANT, "greet", BOB))
    assert block(promote(memory, _planned(memory, "two"), ADA)).paused
    assert block(rollback(memory, TENANT, "greet", ADA)).paused
    assert not block(pause(memory, TENANT, "greet", BOB, paused=False)).paused
    assert not block(promote(memory, _planned(memory, "two"), ADA)).paused


def test_a_python_flow_is_recorded_with_its_version_and_evidence(memory):
    release = FlowRelease("ship", "b" * 64, version="7", key="order:{id}", functions={"shop:ship": "1"}, by="ada")
    block(push_release(memory, TENANT, release))
    block(keep_proof(memory, proof_of_it(release)))
    live = block(promote(memory, block(plan_promotion(memory, TENANT, "ship", ADA)), ADA))
    assert (live.version, live.number) == ("7", 1)
    with pytest.raises(Misuse, match="written in Python"):
        block(pause(memory, TENANT, "ship", ADA))
