"""The contract suite bites: it catches every broken store, by the tests that should, and passes the healthy one."""

import inspect

import pytest

from tests.contracts.stores.broken import BROKEN
from tests.contracts.stores.broken.runner import contract_tests, failures, variants
from twiceproof.prove.store_contract import StoreContract
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_store_is_caught_by_the_subject_it_breaks(broken):
    failed = failures(broken.make)
    assert failed
    astray = {name: subject for name, subject in failed.items() if subject not in broken.subjects}
    assert not astray


def test_the_healthy_store_passes_everything():
    assert failures(lambda clock: GroupedStore(MemoryEngine(clock), clock=clock)) == {}


def test_every_subject_catches_some_broken_store():
    """A subject that never fails proves nothing."""
    subjects = {test.__module__.rsplit(".", 1)[-1] for _, test in contract_tests()}
    assert subjects <= {subject for broken in BROKEN for subject in broken.subjects}


def test_no_two_subjects_give_a_test_the_same_name():
    """The second would silently replace the first."""
    defined = [name for part in inspect.getmro(StoreContract) for name in vars(part) if name.startswith("test_")]
    assert sorted(defined) == sorted(set(defined)) == sorted(name for name, _ in contract_tests())


def test_the_quick_runner_runs_every_variant():
    by_name = {name: len(list(variants(test))) for name, test in contract_tests()}
    assert by_name["test_a_lease_that_is_no_time_is_refused"] == 10
    assert by_name["test_an_insert_lands_where_nothing_is"] == 2
    assert by_name["test_a_field_too_long_is_refused_and_its_twin_taken"] == 2
