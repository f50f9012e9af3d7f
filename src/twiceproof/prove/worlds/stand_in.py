"""What worlds that stand in for servers have in common: a service aside, and names that lead to it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import msgspec

from ...errors import Misuse
from .aside import Aside, Service
from .plain_tls import PlainTls
from .routes import Routes

__all__ = ["StandIn", "open_places"]

_open: list[Aside] = []


def open_places() -> list[str]:
    """Where the stand-ins are that are open, whoever looks at them: plays may connect there."""
    return [f"127.0.0.1:{aside.port}" for aside in _open]


class StandIn:
    """For as long as it is open these names lead here, with TLS or without."""

    def __init__(self, hosts: list[str], service: Service) -> None:
        self._aside = Aside(service)
        try:
            self._routes = Routes(hosts, self._aside.port)
        except Misuse:
            self._aside.close()
            raise
        self._tls = PlainTls(self._routes.leads_here)
        _open.append(self._aside)

    def reset(self) -> None:
        self._aside.ask("reset")

    def look(self) -> dict[str, int]:
        return msgspec.convert(self._aside.ask("look"), dict[str, int])

    def exchanges(self) -> list[str]:
        """What was asked of it in the last play, in order."""
        return msgspec.convert(self._aside.ask("exchanges"), list[str])

    def lose(self, number: int) -> None:
        """The answer to the so-manieth of the next play is lost, after it was carried out."""
        self._aside.ask("lose", number)

    def close(self) -> None:
        self._tls.close()
        self._routes.close()
        self._aside.close()
        _open.remove(self._aside)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
