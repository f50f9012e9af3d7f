"""Drafts and releases as records: what a content is known by, and that every change is one write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.declared.releasing import TENANT, greet, make_live
from twiceproof import Misuse
from twiceproof.declared.reading import read_flow
from twiceproof.declared.releases import (
    FlowProof,
    LiveFlow,
    ReleaseChange,
    change_live,
    content_hash,
    digest_of_tests,
    draft_of,
    function_digests,
    keep_proof,
    list_changes,
    list_releases,
    live_of,
    live_record,
    proof_of,
    push,
    release_of,
    space_of_flow,
)
from twiceproof.operations import block
from twiceproof.stores.base import Store
from twiceproof.stores.open import open_store

INVOICE = "  - step: invoice\n    call: json:loads\n    with: {s: =id}\n    repeat: never\n"


@pytest.fixture
def store() -> Iterator[Store]:
    made = open_store("memory://")
    yield made
    made.close()


def hash_of(text: str) -> str:
    read = read_flow(text)
    assert read.file is not None and not read.problems, read.problems
    return content_hash(read.file)


def test_comments_order_spacing_and_written_out_defaults_do_not_change_a_hash():
    first = "flow: x\ninput: {id: text}\nkey: k:{id}\nsteps:\n  - done: {a: 1, b: =id}\n"
    same = "# note\nkey: k:{id}\nflow:   x\nkeep: 30d\nsteps:\n  - done: {b: =id, a: 1}  # the end\ninput: {id: text}\n"
    assert hash_of(first) == hash_of(same)
    assert len(hash_of(first)) == 64


@pytest.mark.parametrize(
    ("old", "new"),
    [("repeat: never", "repeat: safe"), ("greet:{id}", "greet:{id}:2"), ("call: json:loads", "call: json:dumps")],
)
def test_what_changes_the_flow_changes_its_hash(old, new):
    text = greet("hello", steps=INVOICE)
    assert old in text and hash_of(text) != hash_of(text.replace(old, new))


def test_a_trigger_that_is_written_out_with_its_defaults_is_the_same():
    short = greet("hello", more="on:\n  - schedule: 0 2 * * *\n    give: {id: =tick}\n")
    long = greet("hello", more="on:\n  - schedule: 0 2 * * *\n    tz: UTC\n    give: {id: =tick}\n")
    assert hash_of(short) == hash_of(long) != hash_of(long.replace("UTC", "Europe/Berlin"))


def test_tests_have_a_digest_of_their_own():
    text = greet("hello")
    tested = text + "tests:\n  - {name: one, input: {id: a}}\n"
    assert digest_of_tests(read_flow(text)) != digest_of_tests(read_flow(tested))
    assert digest_of_tests(read_flow(tested)) == digest_of_tests(read_flow(tested + "# later\n"))


def test_the_source_of_called_functions_has_digests_of_its_own():
    digests = function_digests(read_flow(greet("hello", steps=INVOICE)))
    assert list(digests) == ["json:loads"] and len(digests["json:loads"]) == 64


def test_a_push_changes_nothing_live_and_the_same_content_is_pushed_once(store):
    make_live(store, greet("one"))
    before = block(live_record(store, TENANT, "greet"))
    first, wrote = block(push(store, TENANT, greet("two"), by="ada"))
    again, wrote_again = block(push(store, TENANT, "# only a comment\n" + greet("two"), by="bob"))
    assert (wrote, wrote_again, again) == (True, False, first)
    assert block(live_record(store, TENANT, "greet")) == before
    assert block(draft_of(store, TENANT, "greet")) == first
    assert [one.number for one in block(list_releases(store, TENANT, "greet"))] == [1, 0]


def test_a_push_refuses_a_file_that_is_wrong_in_form(store):
    with pytest.raises(Misuse, match="flows lint"):
        block(push(store, TENANT, "flow: x\n", by="ada"))


def test_of_two_changes_at_once_one_is_told_that_it_came_second(store):
    make_live(store, greet("one"))
    before = block(live_record(store, TENANT, "greet"))
    two, _ = block(push(store, TENANT, greet("two"), by="ada"))
    three, _ = block(push(store, TENANT, greet("three"), by="bob"))
    outcomes = [
        block(
            change_live(
                store,
                TENANT,
                before,
                LiveFlow("greet", one.hash, number, number, number),  # nothing but what is live is the same of both
                ReleaseChange("promote", number, one.hash, "ada", 1.0),
                one,
            )
        )
        for number, one in ((2, two), (3, three))
    ]
    assert outcomes == [True, False]
    assert block(live_of(store, TENANT, "greet")).hash == two.hash
    assert block(release_of(store, TENANT, "greet", "r2")).hash == two.hash
    assert len(block(list_changes(store, TENANT, "greet"))) == 2  # nothing of the second one was written


def test_a_release_is_found_by_its_number_and_by_the_beginning_of_its_hash(store):
    release = make_live(store, greet("one"))
    for which in ("", "r1", release.hash, release.hash[:8]):
        assert block(release_of(store, TENANT, "greet", which)).hash == release.hash
    for which in ("r2", "rx", release.hash[:4], "0" * 64):
        with pytest.raises(Misuse, match="no such release"):
            block(release_of(store, TENANT, "greet", which))


def test_the_last_proof_of_a_content_counts_and_tenants_have_their_own(store):
    proof = FlowProof("greet", TENANT, "a" * 64, "", {}, "0.1.0", 2, ())
    block(keep_proof(store, proof))
    kept = block(keep_proof(store, FlowProof("greet", TENANT, "a" * 64, "", {}, "0.1.0", 1, ())))
    assert block(proof_of(store, TENANT, "greet", "a" * 64)) == kept and kept.depth == 1
    assert block(proof_of(store, "other", "greet", "a" * 64)) is None
    assert block(live_of(store, "other", "greet")) is None


def test_no_tenant_can_have_the_space_of_releases():
    assert space_of_flow("acme", "greet") == "~flows/acme/greet"
    for tenant, name in (("a/b", "greet"), ("acme", "x/y"), ("~flows", "greet")):
        with pytest.raises(Misuse):
            space_of_flow(tenant, name)
