"""A MariaDB engine whose server's clock a test can move: the shift is kept in the ledger, for all who look."""

from twiceproof.stores.mariadb.engine import MariadbEngine
from twiceproof.stores.mariadb.rows import NOW

SHIFT = "COALESCE((SELECT value FROM twiceproof_facts WHERE name = 'shift'), 0)"


class MovableMariadbEngine(MariadbEngine):
    now_sql = f"{NOW} + {SHIFT}"

    def advance(self, seconds: float) -> None:
        move = f"REPLACE INTO twiceproof_facts SELECT 'shift', {SHIFT} + %s"
        self._side.ask((move, [seconds]))
