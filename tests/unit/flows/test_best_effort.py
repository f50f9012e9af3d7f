"""Flows on a store that can lose acknowledged writes on failover: refused before anything is done, unless accepted."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof import App, StoreUnsafe
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

WAYS: dict[str, Any] = {
    "called": lambda app, ship: ship(1),
    "started": lambda app, ship: ship.start(1),
    "left to a worker": lambda app, ship: app.worker(),
}


class Forgetful(MemoryEngine):
    """As a Redis Cluster is."""

    best_effort = True


def shop(done: list[int], **options: Any) -> tuple[App, Any]:
    app = App(GroupedStore(Forgetful()), **options)

    @app.flow(key="order:{order}")
    def ship(order: int) -> None:
        done.append(order)

    return app, ship


@pytest.mark.parametrize("way", WAYS)
def test_it_is_refused_with_a_next_move(way: str) -> None:
    done: list[int] = []
    app, ship = shop(done)
    with app, pytest.raises(StoreUnsafe, match=r"ship keeps a ledger.*App\(best_effort=True\)"):
        WAYS[way](app, ship)
    assert done == []


@pytest.mark.parametrize("way", WAYS)
def test_who_accepts_it_is_served(way: str) -> None:
    done: list[int] = []
    app, ship = shop(done, best_effort=True)
    with app:
        ship.start(1)
        WAYS[way](app, ship)
        app.worker().run(until_idle=True)
    assert done == [1]


def test_a_worker_without_flows_has_nothing_to_lose() -> None:
    with App(GroupedStore(Forgetful())) as app:
        assert app.worker().run(until_idle=True) == 0
