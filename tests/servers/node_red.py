"""Node-RED with one flow, of npm's `node-red` 4.1.15; `TWICEPROOF_TEST_NODERED` names its directory in node_modules."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from tests.servers.account import Account
from tests.servers.process import ServerProcess, Unavailable

SETTINGS = {
    "uiHost": "127.0.0.1",
    "flowFile": "flows.json",
    "httpAdminRoot": False,
    "disableEditor": True,
    "telemetry": {"enabled": False},
}


def _programs() -> Iterator[Path]:
    named = os.environ.get("TWICEPROOF_TEST_NODERED")
    if named and (Path(named) / "red.js").is_file():
        yield Path(named) / "red.js"
    found = shutil.which("node-red")
    if found:
        yield Path(found).resolve()


class NodeRed(ServerProcess):
    """It carries out `flow`, as its editor exports one; `environment` is what the flow's `env.get` finds."""

    kind: ClassVar[str] = "node-red"

    def __init__(self, flow: str, environment: Mapping[str, str]) -> None:
        super().__init__()
        self._flow = flow
        self._environment = dict(environment)

    def account(self) -> Account:
        return {}

    def prepare(self) -> None:
        (self.directory / "flows.json").write_text(self._flow)
        given = f"Object.assign(process.env, {json.dumps(self._environment)});\n"
        (self.directory / "settings.js").write_text(f"{given}module.exports = {json.dumps(SETTINGS)};\n")

    def command(self) -> list[str]:
        node, program = shutil.which("node"), next(_programs(), None)
        if node is None or program is None:
            raise Unavailable("Node-RED cannot be had: no node-red on PATH (npm install node-red@4.1.15)")
        where = ["--userDir", str(self.directory), "--settings", str(self.directory / "settings.js")]
        return [node, str(program), "--port", str(self.port), *where]

    def ready(self) -> bool:
        return "Started flows" in self.log()
