"""What an app can be told, in one frozen place. Only `from_environment` reads the environment."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["DEFAULT_STORE", "Settings", "from_environment"]

DEFAULT_STORE = "sqlite:///twiceproof.db"


class Settings(Struct, frozen=True):
    """`store`: a URL. `tenant`: whose keys these are. `best_effort`: accept a store that can lose writes.

    `url`: where callbacks reach this app. `resources`: where large values of runs go; "" is the store itself.
    `keys`: what stored values are sealed with; "" leaves them plain.
    """

    store: str = DEFAULT_STORE
    tenant: str = "default"
    best_effort: bool = False
    sweep_every: float = 300.0
    url: str = ""
    resources: str = ""
    keys: str = ""

    def __repr__(self) -> str:
        """Without the store's address, which may hold a password, and without keys."""
        scheme = self.store.partition("://")[0]
        return f"Settings({scheme}://…, tenant={self.tenant!r}, best_effort={self.best_effort})"


def from_environment(environment: Mapping[str, str]) -> Settings:
    """TWICEPROOF_STORE, TWICEPROOF_TENANT, TWICEPROOF_URL, TWICEPROOF_RESOURCES and TWICEPROOF_KEYS."""
    return Settings(
        store=environment.get("TWICEPROOF_STORE") or DEFAULT_STORE,
        tenant=environment.get("TWICEPROOF_TENANT") or "default",
        url=environment.get("TWICEPROOF_URL") or "",
        resources=environment.get("TWICEPROOF_RESOURCES") or "",
        keys=environment.get("TWICEPROOF_KEYS") or "",
    )
