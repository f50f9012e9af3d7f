"""A batch on every store: killed in the middle, gone on with by another process, each item's effect where it belongs."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

from twiceproof import App, NeedsReview

from .children import Child
from .places import Place

ITEMS = 200


def declare(place: Place, app: App, repeat: Any, dies_at: int | None = None) -> Any:
    @app.step(repeat=repeat)
    def send(n: int) -> int:
        place.do(str(n))
        if n == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * n

    @app.flow(key="batch:{name}")
    def batch(name: str) -> int:
        return sum(app.each(range(ITEMS), send, key="{item}", concurrency=4))

    return batch
