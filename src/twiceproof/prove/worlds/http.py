"""A recording HTTP server that stands in for the outside: what it was asked to do is the effect."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import msgspec

from ...errors import Misuse
from .aside import Aside
from .http_answers import Answer, answers_from
from .http_service import HttpService
from .routes import Routes

__all__ = ["Answer", "HttpWorld"]


class HttpWorld:
    """`with HttpWorld(["api.shop.test"]) as world:` leads these names here, for http:// and every port.

    Requests are counted by method, host, path and body; GET and HEAD only look. With `honours_keys`, a repeated
    Idempotency-Key with the same request is answered with the first answer and is no effect.
    """

    def __init__(self, hosts: list[str], *, answers: dict[str, Any] | None = None, honours_keys: bool = False) -> None:
        service = HttpService(answers_from(answers or {}), honours_keys=honours_keys)
        self._aside = Aside(service)
        try:
            self._routes = Routes(hosts, self._aside.port)
        except Misuse:
            self._aside.close()
            raise

    @property
    def url(self) -> str:
        """For a program whose base URL can be set."""
        return f"http://127.0.0.1:{self._aside.port}"

    def reset(self) -> None:
        self._aside.ask("reset")

    def look(self) -> dict[str, int]:
        return msgspec.convert(self._aside.ask("look"), dict[str, int])

    def exchanges(self) -> list[str]:
        """What was asked of it in the last play, in order. That somebody spoke TLS to it is told here."""
        if self._aside.ask("spoken to in TLS"):
            raise Misuse(
                "The flow called https://, and the stand-in has no certificate that it would trust; make its base URL "
                "a setting, and say http:// in it while it is proved."
            )
        return msgspec.convert(self._aside.ask("exchanges"), list[str])

    def lose(self, number: int) -> None:
        """The answer to the so-manieth request of the next play is lost, after it was carried out."""
        self._aside.ask("lose", number)

    def close(self) -> None:
        self._routes.close()
        self._aside.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
