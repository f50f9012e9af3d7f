"""Settings: the environment is read in one place."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof import App
from twiceproof.settings import DEFAULT_STORE, Settings, from_environment


@pytest.mark.parametrize("environment", [{}, {"TWICEPROOF_STORE": "", "TWICEPROOF_TENANT": ""}])
def test_what_is_not_set_has_its_default(environment: dict[str, str]) -> None:
    assert from_environment(environment) == Settings(store=DEFAULT_STORE, tenant="default")


def test_the_environment_names_the_store_and_the_tenant() -> None:
    found = from_environment({"TWICEPROOF_STORE": "memory://", "TWICEPROOF_TENANT": "acme"})
    assert (found.store, found.tenant, found.best_effort) == ("memory://", "acme", False)


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Settings().store = "memory://"  # type: ignore[misc]


def test_an_app_takes_the_environments_word_unless_it_is_told(monkeypatch: Any) -> None:
    monkeypatch.setenv("TWICEPROOF_STORE", "memory://")
    monkeypatch.setenv("TWICEPROOF_TENANT", "acme")
    with App() as app, App("memory://", tenant="bolt") as told:
        assert (app.settings.store, app.settings.tenant) == ("memory://", "acme")
        assert told.settings.tenant == "bolt"
