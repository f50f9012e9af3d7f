"""SAP's CAP, an OData server of somebody else's, of npm's `@sap/cds` 9.9.3 and `@cap-js/sqlite` 2.4.2.

`TWICEPROOF_TEST_CAP` names the directory node_modules that has them. The tests never fetch it: its licence is for the
tester to accept. It serves one table with the columns of a ledger, as Dataverse's Web API would be addressed, and its
clock can be moved.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from pathlib import Path
from typing import ClassVar

from tests.servers.account import Account
from tests.servers.process import ServerProcess, Unavailable
from twiceproof.stores.service_rows import COLUMNS

TABLE = "new_claims"
NUMBERS = {"lease", "stamped", "due_in", "due"}
LONG = {"address", "body", "nonce", "space"}
SETTINGS = {
    "requires": {"db": {"kind": "sqlite", "credentials": {"url": ":memory:"}}, "auth": {"kind": "dummy"}},
    "runtime": {"patch_as_upsert": True},
    "server": {"body_parser": {"limit": "5mb"}},
}

# The version and the times of a row are the server's, as Dataverse's are. Its own listener would be on all interfaces.
PROGRAM = """
const cds = require('@sap/cds'), express = require('express')
let shift = 0, version = 0
const now = () => new Date(Date.now() + 1000 * shift)
const stamp = request => {
  request.data.version = ++version
  request.data.modifiedon = now().toISOString().slice(0, 19) + 'Z'  // as Dataverse: whole seconds
  if (request.event !== 'UPDATE') request.data.createdon = request.data.modifiedon
}
const serve = async () => {
  cds.model = cds.compile.for.nodejs(await cds.load('ledger.cds'))
  cds.db = await cds.connect.to('db')
  await cds.deploy(cds.model).to(cds.db)
  const app = express()
  app.use((request, answer, next) => { answer.setHeader('Date', now().toUTCString()); next() })
  app.post('/shift/:seconds', (request, answer) => { shift = Number(request.params.seconds); answer.end() })
  app.post('/empty', (request, answer) => cds.run(DELETE.from('Ledger.TABLE')).then(() => answer.end()))
  await cds.serve('all').from(cds.model).in(app).with(service =>
    service.before(['CREATE', 'UPSERT', 'UPDATE'], '*', stamp))
  app.listen(Number(process.argv[2]), '127.0.0.1', () => console.log('serves'))
}
serve()
"""


def _model() -> str:
    columns = [f"new_{name} : {_kind(name)};" for name in COLUMNS if name != "key"]
    key = "key new_key : String(850); createdon : Timestamp; modifiedon : Timestamp; version : Integer64 @odata.etag;"
    return f"service Ledger @(path: '/api/data/v9.2') {{ entity {TABLE} {{ {key} {' '.join(columns)} }} }}"


def _kind(column: str) -> str:
    return "Double" if column in NUMBERS else "LargeString" if column in LONG else "String(850)"


class CapServer(ServerProcess):
    kind: ClassVar[str] = "cap"

    def account(self) -> Account:
        return {}

    def prepare(self) -> None:
        modules = Path(os.environ.get("TWICEPROOF_TEST_CAP") or "/nowhere")
        if not (modules / "@sap" / "cds").is_dir() or not (modules / "@cap-js" / "sqlite").is_dir():
            raise Unavailable("CAP cannot be had: TWICEPROOF_TEST_CAP names no node_modules with @sap/cds")
        (self.directory / "node_modules").symlink_to(modules.resolve())
        (self.directory / "package.json").write_text(json.dumps({"name": "ledger", "cds": SETTINGS}))
        (self.directory / "ledger.cds").write_text(_model())
        (self.directory / "main.js").write_text(PROGRAM.replace("TABLE", TABLE))

    def command(self) -> list[str]:
        node = shutil.which("node")
        if node is None:
            raise Unavailable("CAP cannot be had: no node on PATH")
        return [node, str(self.directory / "main.js"), str(self.port)]

    def ready(self) -> bool:
        return "serves" in self.log()

    @property
    def base(self) -> str:
        return f"http://{self.host}:{self.port}"

    def shift(self, seconds: float) -> None:
        """Set its clock so much ahead of this machine's."""
        self._ask(f"/shift/{seconds}")

    def empty(self) -> None:
        self._ask("/empty")

    def _ask(self, path: str) -> None:
        urllib.request.urlopen(f"{self.base}{path}", data=b"", timeout=10).close()
