"""A server is killed again and again while four processes write to it; afterwards their accounts are judged."""

from __future__ import annotations

import random
import time

from tests.acceptance.places import Place
from tests.faults.catalogue.accounts import Accounts, ask_again, read_accounts
from tests.faults.catalogue.writers import POINTS, Writers
from tests.faults.finding import Finding
from tests.servers import PostgresServer, ValkeyServer

__all__ = ["MOST_SECONDS", "Siege"]

MOST_SECONDS = 60.0  # without a single answer: no progress


class Siege:
    """`kills` times: let some answers come, kill the server at a random moment, start it again."""

    def __init__(self, place: Place, server: PostgresServer | ValkeyServer, dice: random.Random, name: str) -> None:
        self.place = place
        self.server = server
        self.name = name
        self.kills = 0
        self.points = dict.fromkeys(POINTS[1:], 0)
        self.accounts = Accounts()
        self._dice = dice

    def lay(self, kills: int, *, between: tuple[int, int] = (20, 120)) -> list[str]:
        """Besiege a server; return the broken promises."""
        writers = Writers(self.place)
        try:
            stuck = self._kill(writers, kills, between)
            codes = writers.stop()
        except BaseException:
            writers.kill()
            raise
        self.accounts = read_accounts(self.place)
        broken = [f"a writer fell: {code}" for code in codes if code]
        return stuck + broken + [*self.accounts.complaints()] + ask_again(self.place, self.accounts)

    def report(self, finding: Finding, complaints: list[str]) -> None:
        for complaint in complaints:
            finding.violated(f"{self.name}, seed {finding.seed}: {complaint}")
        for point, hits in self.points.items():
            finding.hit(f"{self.name} killed while {point}", hits)
        finding.count(f"acknowledged, {self.name}", len(self.accounts.heard))
        finding.count(f"fences drawn, {self.name}", sum(map(len, self.accounts.fences.values())))
        finding.count(f"answers that did not come, {self.name}", len(self.accounts.unknown))

    def _kill(self, writers: Writers, kills: int, between: tuple[int, int]) -> list[str]:
        for nth in range(kills):
            if not self._let_answers_come(writers, self._dice.randrange(*between)):
                return [f"no progress: no answer for {MOST_SECONDS:.0f} s after kill {nth}"]
            for point in writers.board.points():
                self.points[point] += 1
            self.server.kill()
            self.kills += 1
            self.server.start()
        last = self._let_answers_come(writers, between[1])
        return [] if last else [f"no progress: no answer for {MOST_SECONDS:.0f} s after the last kill"]

    def _let_answers_come(self, writers: Writers, more: int) -> bool:
        board = writers.board
        wanted, end = board.answers() + more, time.monotonic() + MOST_SECONDS
        while board.answers() < wanted or not board.all_at_work:
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        time.sleep(self._dice.random() * 0.005)
        return True
