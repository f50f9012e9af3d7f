"""The contract bites: it catches every broken source, by the tests that should, and passes the healthy ones."""

import functools
import inspect

import pytest

from tests.contracts.sources.broken import BROKEN, runner
from tests.contracts.sources.broken.runner import contract_tests
from twiceproof.inbound.sources.github import GitHub
from twiceproof.prove.source_contract import SourceContract

pytestmark = pytest.mark.slow

failures = functools.cache(runner.failures)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_source_is_caught_by_the_subject_it_breaks(broken):
    failed = failures(broken.make)
    assert broken.subjects[0] in failed.values()
    astray = {name: subject for name, subject in failed.items() if subject not in broken.subjects}
    assert not astray


def test_the_healthy_source_passes_everything():
    assert failures(GitHub) == {}


def test_every_subject_catches_some_broken_source():
    """A subject that never fails proves nothing."""
    subjects = {test.__module__.rsplit(".", 1)[-1] for _, test in contract_tests()}
    assert subjects <= {subject for broken in BROKEN for subject in broken.subjects}


def test_every_test_of_the_contract_catches_some_broken_source():
    caught = {name for broken in BROKEN for name in failures(broken.make)}
    assert {name for name, _ in contract_tests()} - caught == set()


def test_no_two_subjects_give_a_test_the_same_name():
    """The second would silently replace the first."""
    defined = [name for part in inspect.getmro(SourceContract) for name in vars(part) if name.startswith("test_")]
    assert sorted(defined) == sorted(set(defined)) == sorted(name for name, _ in contract_tests())
