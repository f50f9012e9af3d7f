"""The settings of an app. Only `from_environment` reads the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

__all__ = ["DEFAULT_STORE", "ENVIRONMENT", "Settings", "from_environment"]


DEFAULT_STORE = "sqlite:///twiceproof.db"

# The environment variable of each setting, used where the code gives none.
ENVIRONMENT = {
    "store": "TWICEPROOF_STORE",
    "tenant": "TWICEPROOF_TENANT",
    "url": "TWICEPROOF_URL",
    "resources": "TWICEPROOF_RESOURCES",
    "keys": "TWICEPROOF_KEYS",
}


def _said(text: str) -> Meta:
    return Meta(description=text)


class Settings(Struct, frozen=True):
    """The settings of an app. The reference page is generated from the descriptions."""

    store: Annotated[str, _said("The ledger: a URL; in code also a store.")] = DEFAULT_STORE
    tenant: Annotated[str, _said("Whose keys these are: tenants never see each other's.")] = "default"
    best_effort: Annotated[
        bool, _said('Accept a store that can lose acknowledged writes, also for what is declared `repeat="never"`.')
    ] = False
    sweep_every: Annotated[float, _said("Seconds between two looks for claims whose time is over.")] = 300.0
    url: Annotated[str, _said("Where callbacks and links reach this app from outside: https://hooks.example.com.")] = ""
    resources: Annotated[
        str, _said("Where large values of runs go: dir:///var/lib/shop or s3://bucket/prefix. Empty: to the store.")
    ] = ""
    keys: Annotated[
        str,
        _said(
            "What stored values are sealed with: `id:base64`, the one that seals first; `sealed-only` among them: "
            "what is not sealed is refused. Empty: they stay plain."
        ),
    ] = ""

    def __repr__(self) -> str:
        """Without the store's address, which may hold a password, and without keys."""
        scheme = self.store.partition("://")[0]
        return f"Settings({scheme}://…, tenant={self.tenant!r}, best_effort={self.best_effort})"


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Return the settings in environment variables; empty ones are ignored."""
    said: dict[str, Any] = {name: environment.get(variable) for name, variable in ENVIRONMENT.items()}
    return Settings(**{name: value for name, value in said.items() if value})
