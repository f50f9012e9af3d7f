"""Azurite's table service, of npm's `azurite` 3.35.0; `TWICEPROOF_TEST_AZURITE` names its directory in node_modules."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from tests.servers.account import Account
from tests.servers.process import ServerProcess, Unavailable

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # everybody's
MAIN = "dist/src/table/main.js"


def _programs() -> Iterator[Path]:
    named = os.environ.get("TWICEPROOF_TEST_AZURITE")
    roots = [Path(named)] if named else []
    found = shutil.which("azurite-table")
    if found:
        yield Path(found).resolve()
    for root in roots:
        if (root / MAIN).is_file():
            yield root / MAIN


class Azurite(ServerProcess):
    kind: ClassVar[str] = "azurite"

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.options = options

    def account(self) -> Account:
        return {}

    def command(self) -> list[str]:
        node, program = shutil.which("node"), next(_programs(), None)
        if node is None or program is None:
            raise Unavailable("Azurite cannot be had: no azurite-table on PATH (npm install azurite@3.35.0)")
        where = ["--tableHost", self.host, "--tablePort", str(self.port), "--location", str(self.directory)]
        return [node, str(program), "--silent", "--disableTelemetry", *where, *self.options]

    def connection_string(self, port: int | None = None) -> str:
        where = f"http://{self.host}:{port or self.port}/devstoreaccount1"
        return f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={KEY};TableEndpoint={where};"

    def ready(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=1).close()
        except OSError:
            return False
        return True
