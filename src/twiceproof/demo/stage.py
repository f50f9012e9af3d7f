"""The stage: all processes of the demo, what they say, and the kills that the weather asks for."""

from __future__ import annotations

import json
import os
import queue
from base64 import b64encode
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

from .member import Heard, Member
from .plan import SIDES

__all__ = ["Stage"]

MODULES = {"naive": "naive", "twiceproof": "guarded"}
EACH = 2  # processes of each program
PATIENCE = 60.0  # seconds without a word from anybody
LAST = 5.0  # seconds to come to an end


class Stage:
    """The outside world first, then both programs, then the shop that sends to them."""

    def __init__(self, place: Path, ledger: str) -> None:
        self._place = place
        self._heard: Heard = queue.Queue()
        self._members: list[Member] = []
        self._environment = {
            "DEMO_LEDGER": ledger,
            "DEMO_NAIVE_DATABASE": str(place / "naive.db"),
            "DEMO_SECRET": "whsec_" + b64encode(os.urandom(24)).decode(),
        }
        self.kills: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.shop: dict[str, dict[str, int]] = {}
        self.finished = False

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Stage:
        return self

    def open(self) -> None:
        services = {name: self._start(name, name, [str(self._place)]) for name in ("accounting", "mail_server")}
        self._wait_for(list(services.values()))
        self._environment["DEMO_ACCOUNTING_PORT"] = str(services["accounting"].port)
        self._environment["DEMO_MAIL_PORT"] = str(services["mail_server"].port)
        programs = {
            side: [self._start(f"{side}-{number}", MODULES[side], ["0"]) for number in range(1, EACH + 1)]
            for side in SIDES
        }
        self._wait_for([member for members in programs.values() for member in members])
        ports = {side: [member.port for member in members] for side, members in programs.items()}
        self._start("shop", "shop", [str(self._place), json.dumps(ports)])

    def _start(self, name: str, module: str, words: list[str]) -> Member:
        member = Member(name, module, words, self._place / f"{name}.log", self._heard)
        self._members.append(member)
        member.start(self._environment)
        return member

    def _wait_for(self, members: list[Member]) -> None:
        while not all(member.port for member in members):
            if not self.hear(PATIENCE):
                silent = ", ".join(member.name for member in members if not member.port)
                raise RuntimeError(f"{silent} of the demo did not start within {PATIENCE:g} s")

    def close(self, patience: float = LAST) -> None:
        for member in reversed(self._members):
            member.end(patience)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(LAST if error is None else 0.0)

    # -- what is said ----------------------------------------------------------------------------

    def hear(self, timeout: float) -> bool:
        """One thing that somebody says; False: nobody did."""
        try:
            member, said = self._heard.get(timeout=timeout)
        except queue.Empty:
            return False
        if said is None:
            raise RuntimeError(f"{member.name} of the demo ended by itself:\n{member.last_words()}")
        self._take(member, said)
        return True

    def _take(self, member: Member, said: dict[str, Any]) -> None:
        if "port" in said:
            member.port = said["port"]
        elif "kill" in said:
            self._kill(said["kill"], said["side"])
        elif "lost" in said:
            self.lost[said["lost"]] += 1
        else:
            self.shop = said["shop"]
            self.finished = said.get("finished", False)

    def _kill(self, pid: int, side: str) -> None:
        for member in self._members:
            if member.pid == pid:
                member.kill()
                self.kills[side] += 1
                member.start(self._environment)
