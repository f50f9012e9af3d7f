"""Connections by tenant: `connections.yaml` is for the process's own one, `connections.TENANT.yaml` for another one.

A tenant without a file has no connections. If it had those of `connections.yaml`, a new tenant would reach the systems
of the first one, with its secrets, until somebody thought of writing a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..claims.claim import validate_name
from .connections import Connections

__all__ = ["CONNECTIONS", "TenantConnections", "connection_files"]


CONNECTIONS = "connections.yaml"
BEGIN, END = CONNECTIONS.split(".")


class TenantConnections:
    """The connections files of a directory, read once.

    `own` is the tenant of the process: `connections.yaml` is its file, if it has none with its name.
    """

    def __init__(self, folder: Path, own: str) -> None:
        self._folder = folder
        self._own = own
        named = {tenant: Connections.read(path) for path in connection_files(folder) if (tenant := _tenant_of(path))}
        self._known = {own: Connections.read(folder / CONNECTIONS), **named}

    def of(self, tenant: str) -> Connections:
        """Return a tenant's connections: of its own file, and of no other."""
        known = self._known.get(tenant)
        if known is not None:
            return known
        file = self._folder / f"{BEGIN}.{tenant}.{END}"
        return Connections(file=str(file), note=f" (not there; {CONNECTIONS} is for the tenant {self._own})")

    def __iter__(self) -> Iterator[Connections]:
        return iter(self._known.values())


def connection_files(folder: Path) -> list[Path]:
    """Return the connections files of a directory. It is listed, and no name is looked up: on a disk that does not tell
    `A` from `a`, a tenant would find the file of another one.
    """
    return sorted([*folder.glob(CONNECTIONS), *folder.glob(f"{BEGIN}.*.{END}")])


def _tenant_of(path: Path) -> str:
    """Return whose file it is; empty for `connections.yaml`."""
    name = path.name.removeprefix(BEGIN).removesuffix(f".{END}").removeprefix(".")
    return name and validate_name("tenant", name)
