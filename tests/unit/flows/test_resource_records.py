"""A resource's record leads to its own file on the shelf, whatever somebody wrote into it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.unit.flows.test_resources import BYTES, World, reporting
from twiceproof import ResultNotKept
from twiceproof.claims.blobs.records import DAY, BlobRef
from twiceproof.claims.claim import address_of
from twiceproof.claims.retention import forget
from twiceproof.operations import block
from twiceproof.records import Replace


@pytest.mark.parametrize("way", ["absolute", "up", "another run's"])
def test_a_record_that_was_changed_leads_to_no_other_file(tmp_path: Path, way: str) -> None:
    world = World(f"dir://{tmp_path}/resources")
    app = world.process()
    report = reporting(app, keep="1d")
    made, _ = report(1), report(2)
    mine, theirs = app.store.scan("resource").block().records
    victim = tmp_path / "ledger.db"
    victim.write_bytes(BYTES)
    away = msgspec.json.decode(mine.body, type=BlobRef)
    path = {"absolute": str(victim), "up": "../ledger.db"}.get(way, msgspec.json.decode(theirs.body, type=BlobRef).path)
    changed = msgspec.json.encode(msgspec.structs.replace(away, path=path)).decode()
    app.store.write(Replace(mine.at, changed, mine.state, version=mine.version)).block()
    with pytest.raises(ResultNotKept, match="its record was changed"):
        made.read(app)
    world.clock.advance(2 * DAY)
    block(forget(app.store, app.store.read(address_of("default", "report", "order:1", "run")).block().record))
    assert app.store.scan("resource").block().records == [theirs]
    assert victim.exists() and msgspec.json.decode(theirs.body, type=BlobRef).path in world.on_shelf()
    world.close()
