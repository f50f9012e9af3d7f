"""Secrets: read when they are needed, several for rotation, and never shown."""

from __future__ import annotations

import copy
import pickle

import pytest

from twiceproof import Misuse, env
from twiceproof.secret import secrets_of


def test_it_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = env("SHOP_SECRET")
    monkeypatch.setenv("SHOP_SECRET", "first")
    assert secret.values()[0] == "first"
    monkeypatch.setenv("SHOP_SECRET", "second")
    assert secret.values()[0] == "second"


def test_several_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", " new, with a comma\n")
    monkeypatch.setenv("SHOP_SECRET_OLD", "old")
    both = env("SHOP_SECRET", "SHOP_SECRET_OLD", "SHOP_SECRET_NOT_SET")
    assert both.values() == both() == ("new, with a comma", "old")
    assert secrets_of([both, "third"]) == ("new, with a comma", "old", "third")


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_one_that_is_not_set_says_which(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SHOP_SECRET", text)
    with pytest.raises(Misuse, match="SHOP_SECRET is not set"):
        env("SHOP_SECRET").values()
    assert env("SHOP_SECRET")() == ()


def test_nothing_shows_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", "hunter2")
    secret = env("SHOP_SECRET")
    secret.values()
    shown = f"{secret} {secret!r} {[secret]} {vars(type(secret)).keys()} {pickle.dumps(secret)!r} {copy.copy(secret)}"
    assert "hunter2" not in shown
    assert pickle.loads(pickle.dumps(secret)) == secret == copy.deepcopy(secret)


def test_a_value_in_the_place_of_a_name_is_refused_without_being_repeated() -> None:
    with pytest.raises(Misuse) as refused:
        env("whsec_aGVsbG8=")
    assert "aGVsbG8" not in str(refused.value)
