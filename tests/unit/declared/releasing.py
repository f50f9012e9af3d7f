"""What tests of releases share: a directory with one flow, and a release made live without the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twiceproof.declared.releases import FlowRelease, LiveFlow, ReleaseChange, change_live, live_record, push, read_live
from twiceproof.operations import block
from twiceproof.stores.base import Store

TENANT = "default"


def greet(text: str, *, key: str = "greet:{id}", more: str = "", steps: str = "  - sleep: 1h\n") -> str:
    return f'flow: greet\ninput: {{id: text}}\nkey: {key}\n{more}steps:\n{steps}returns: "{text}"\n'


def write(folder: Path, text: str, connections: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "greet.flow.yaml").write_text(text)
    (folder / "connections.yaml").write_text(connections)
    return folder


def make_live(store: Store, text: str, tenant: str = TENANT, **said: Any) -> FlowRelease:
    """Push a content and make it live, as a promotion does after its gate."""
    release, _ = block(push(store, tenant, text, by="ada"))
    record = block(live_record(store, tenant, release.flow))
    before = None if record is None else read_live(record)
    last = 0 if before is None else before.last
    number = release.number or last + 1
    changes = 1 if before is None else before.changes + 1
    live = LiveFlow(release.flow, release.hash, number, max(last, number), changes, **said)
    change = ReleaseChange("promote", number, release.hash, "ada", 0.0)
    assert block(change_live(store, tenant, record, live, change, release))
    return release
