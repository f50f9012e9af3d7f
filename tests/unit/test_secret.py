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
    assert secret()[0] == "first"
    monkeypatch.setenv("SHOP_SECRET", "second")
    assert secret()[0] == "second"


@pytest.mark.parametrize("text", ["new old", "new,old", " new ,\n old ", "new\told"])
def test_several_stand_apart_by_space_or_comma(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SHOP_SECRET", text)
    assert env("SHOP_SECRET").values() == ("new", "old")
    assert secrets_of([env("SHOP_SECRET"), "third"]) == ("new", "old", "third")


def test_several_may_also_stand_under_several_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", "new\n")
    monkeypatch.setenv("SHOP_SECRET_OLD", "old")
    assert env("SHOP_SECRET", "MISSING", "SHOP_SECRET_OLD").values() == ("new", "old")


@pytest.mark.parametrize("text", ["", "  ", " , "])
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
