"""The conditions under which a fault is tried: dice, share of the full run, stores, and servers that may be killed."""

from __future__ import annotations

import contextlib
import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.acceptance.places import Place, PostgresPlace, RedisPlace, SqlitePlace
from tests.servers.keeper import scratch

if TYPE_CHECKING:
    from tests.servers import PostgresServer, ValkeyServer

STORES = ("sqlite", "postgres", "valkey")
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "valkey": "Valkey"}


class Trial:
    """One fault's run. Servers are started when first asked for, and are nobody else's."""

    def __init__(
        self, seed: int, share: float = 1.0, stores: tuple[str, ...] = STORES, say: Callable[[str], None] = print
    ) -> None:
        self.seed = seed
        self.share = share
        self.stores = stores
        self.say = say
        self._stack = contextlib.ExitStack()
        self._postgres: PostgresServer | None = None
        self._valkey: ValkeyServer | None = None

    def __enter__(self) -> Self:
        """The whole run is on a disk, with its fsync; a part of it in memory."""
        root = scratch(disk=self.share >= 1.0)
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="prove-", dir=root)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def times(self, full: int, least: int = 1) -> int:
        """So many of what a full run has, by our share of it."""
        return max(least, round(full * self.share))

    def dice(self, *what: object) -> random.Random:
        """The same for the same seed, whatever else is thrown in between."""
        return random.Random(hashlib.sha256(repr((self.seed, *what)).encode()).digest())

    # -- stores ----------------------------------------------------------------------------------

    @property
    def postgres(self) -> PostgresServer:
        from tests.servers import PostgresServer

        if self._postgres is None:
            self._postgres = self._stack.enter_context(PostgresServer())
        return self._postgres

    @property
    def valkey(self) -> ValkeyServer:
        from tests.servers import ValkeyServer

        if self._valkey is None:
            self._valkey = self._stack.enter_context(ValkeyServer())
        return self._valkey

    @contextlib.contextmanager
    def place(self, store: str) -> Iterator[Place]:
        """An empty store of that kind, with a clock that can be moved and an outside that is counted."""
        with tempfile.TemporaryDirectory(dir=self.directory) as here:
            yield self._place(store, Path(here))

    def _place(self, store: str, here: Path) -> Place:
        if store == "sqlite":
            (here / "clock").write_text("0")
            return SqlitePlace("", here)
        if store == "postgres":
            place: Place = PostgresPlace(self.postgres.create_database(), here)
        else:
            self.valkey.empty()
            place = RedisPlace(self.valkey.url, here)
        place.app().close()  # creates what there is to create
        return place
