"""Flows that call others: what is called is proved with its caller, and is live as it was proved."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.unit.declared.releasing import TENANT, greet, make_live
from twiceproof import Misuse
from twiceproof.declared.promotion import Promotion, Releaser, plan_promotion, promote
from twiceproof.declared.releases import FlowProof, TestProof, keep_proof, push
from twiceproof.operations import block
from twiceproof.prove.flow_tests import TestedFile, flow_proof, read_tested
from twiceproof.stores.base import Store
from twiceproof.stores.open import open_store

ADA = Releaser("ada")
STEPS = "  - set: {said: =id}\n"
TESTS = "tests:\n  - {name: one, input: {id: a}}\n"


@pytest.fixture
def memory() -> Iterator[Store]:
    made = open_store("memory://")
    yield made
    made.close()


def plan(store: Store, name: str = "outer", **given: Any) -> Promotion:
    return block(plan_promotion(store, TENANT, name, ADA, **given))


def refusals(store: Store) -> list[str]:
    return [check.found for check in plan(store).refused]


def caller(inner: str = "greet") -> str:
    return (
        "flow: outer\ninput: {id: text}\nkey: outer:{id}\n"
        f"steps:\n  - {{step: said, flow: {inner}, with: {{id: =id}}}}\nreturns: =said\n" + TESTS
    )


def as_tested(folder: Path, files: dict[str, str]) -> TestedFile:
    for name, text in files.items():
        (folder / f"{name}.flow.yaml").write_text(text)
    return read_tested(folder / "outer.flow.yaml")


def proved_caller(store: Store, folder: Path, files: dict[str, str]) -> FlowProof:
    """Keep the evidence that `flows test` makes of the caller's file, with the files beside it."""
    return block(keep_proof(store, evidence(as_tested(folder, files))))


def evidence(tested: TestedFile) -> FlowProof:
    """The evidence for what was read, with a result that was not run here."""
    proof = flow_proof(tested, [], tenant=TENANT, depth=2, by="ci", host="here")
    return structs.replace(proof, results=(TestProof("one", 92, 92, True),))


def test_a_called_flow_is_proved_with_its_caller(memory, tmp_path):
    """Whoever changes what is called has to prove the caller again, and its own promotion names the caller."""
    block(push(memory, TENANT, caller(), by="ada"))
    proof = proved_caller(memory, tmp_path, {"outer": caller(), "greet": greet("one", steps=STEPS)})
    assert proof.flows == {"greet": make_live(memory, greet("one", steps=STEPS)).hash}
    block(promote(memory, plan(memory), ADA))

    assert {"callers": "outer calls it: prove and promote again after this"}.items() <= {
        check.name: check.found for check in plan(memory, "greet", which="r1").checks if check.ok
    }.items()
    changed = make_live(memory, greet("two", steps=STEPS))
    told = f"it calls greet, of which r2 is live ({changed.hash[:12]}), and the evidence was made with another content"
    assert refusals(memory) == [f"{told} of it ({proof.flows['greet'][:12]})"]
    with pytest.raises(Misuse, match="another content of it"):
        block(promote(memory, plan(memory), ADA))
    proved_caller(memory, tmp_path, {"greet": greet("two", steps=STEPS)})
    assert refusals(memory) == []


def test_evidence_that_names_no_called_flow_counts_for_nothing(memory, tmp_path):
    block(push(memory, TENANT, caller(), by="ada"))
    proof = proved_caller(memory, tmp_path, {"outer": caller(), "greet": greet("one", steps=STEPS)})
    make_live(memory, greet("one", steps=STEPS))
    block(keep_proof(memory, structs.replace(proof, flows={})))
    (found,) = refusals(memory)
    assert found.startswith("it calls greet, of which r1 is live") and found.endswith("was made without it")


def test_what_is_called_must_be_live(memory, tmp_path):
    """Also what the called flow calls. Another tenant's release is none."""
    middle = caller().replace("outer", "middle")
    files = {"outer": caller("middle"), "middle": middle, "greet": greet("one", steps=STEPS)}
    block(push(memory, TENANT, files["outer"], by="ada"))
    proved_caller(memory, tmp_path, files)
    make_live(memory, files["middle"], tenant="acme")
    assert refusals(memory) == ["it calls middle, of which no release of a file is live"]
    make_live(memory, files["middle"])
    assert refusals(memory) == ["it calls greet, of which no release of a file is live"]
    make_live(memory, files["greet"])
    assert refusals(memory) == []


def test_a_flow_that_calls_itself_needs_no_release_before_its_first(memory, tmp_path):
    text = caller("outer")
    block(push(memory, TENANT, text, by="ada"))
    proved_caller(memory, tmp_path, {"outer": text})
    assert refusals(memory) == []


def test_the_functions_of_a_called_flow_are_proved_with_its_caller(memory, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "works_of_greet.py"
    module.write_text("def shout(text):\n    return text.upper()\n")
    steps = "  - {step: said, call: works_of_greet:shout, with: {text: =id}, repeat: safe}\n"
    block(push(memory, TENANT, caller(), by="ada"))
    proved_caller(memory, tmp_path, {"outer": caller(), "greet": greet("one", steps=steps)})
    make_live(memory, greet("one", steps=steps))
    assert refusals(memory) == []
    module.write_text("def shout(text):\n    return text.lower()\n")
    del sys.modules["works_of_greet"]
    assert refusals(memory) == ["the evidence was made with other code of works_of_greet:shout than is here"]


def test_evidence_is_for_the_files_as_they_were_before_the_tests(memory, tmp_path):
    files = {"outer": caller(), "greet": greet("one", steps=STEPS)}
    before = as_tested(tmp_path, files)
    as_tested(tmp_path, {"outer": caller().replace("=said", "=id"), "greet": greet("two", steps=STEPS)})
    proof = flow_proof(before, [], tenant=TENANT, depth=2, by="ci", host="here")
    release, _ = block(push(memory, TENANT, files["outer"], by="ada"))
    assert proof.hash == release.hash and proof.flows == {"greet": make_live(memory, files["greet"]).hash}


def proved(store: Store, folder: Path, name: str, files: dict[str, str]) -> Promotion:
    """Push a flow, keep the evidence for it as its files are, and plan its promotion."""
    as_tested(folder, files)
    block(push(store, TENANT, files[name], by="ada"))
    tested = read_tested(folder / f"{name}.flow.yaml")
    block(keep_proof(store, evidence(tested)))
    return plan(store, name)


def test_two_flows_that_call_each_other_are_told_how_they_go_live(memory, tmp_path):
    """Each has to be live before the other. What is told is then done, and works."""
    inner = caller("outer").replace("flow: outer\n", "flow: inner\n", 1).replace("key: outer", "key: inner")
    files = {"outer": caller("inner"), "inner": inner}
    proved(memory, tmp_path, "inner", files)
    (refused,) = proved(memory, tmp_path, "outer", files).refused
    assert refused.found == "it calls inner, of which no release of a file is live, and whose draft calls outer"
    assert refused.instead == "promote inner without its call of outer first, then outer, then inner with the call"

    alone = inner.replace("flow: outer, with: {id: =id}", "sleep: 1s").replace("returns: =said\n", "")
    for name, text in (("inner", alone), ("outer", files["outer"]), ("inner", inner)):
        ready = proved(memory, tmp_path, name, {**files, "inner": alone if text != inner else inner})
        block(promote(memory, ready, ADA))
    (found,) = refusals(memory)
    assert "another content of it" in found
    assert proved(memory, tmp_path, "outer", files).refused == []
