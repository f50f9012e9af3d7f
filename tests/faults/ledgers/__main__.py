"""Writes the ledgers of this version: `python -m tests.faults.ledgers`."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.faults.ledgers.copies import save
from tests.faults.ledgers.museum import Museum
from tests.faults.trial import STORES, Trial
from twiceproof.version import __version__


def main() -> None:
    socket.gethostname = lambda: "shop"  # replaced in the owners' names: no host name belongs into a repository
    folder = Path(__file__).parent / __version__
    folder.mkdir(exist_ok=True)
    about = {}
    with Trial(seed=0) as trial:
        for store in STORES:
            with trial.place(store) as place:
                Museum.furnish(place)
                save(store, place, folder)
                with place.app() as app:
                    now = app.store.scan("claim").block().now
                about[store] = {"written_at": now, "effects": place.effects()}
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
