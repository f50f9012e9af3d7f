"""A recording HTTP server that stands in for the outside: what it was asked to do is the effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import Misuse
from .http_answers import Answer, answers_from, counts_from
from .http_service import HttpService
from .stand_in import StandIn

__all__ = ["Answer", "HttpWorld"]


class HttpWorld(StandIn):
    """`with HttpWorld(["api.shop.test"]) as world:` leads these names here, for http://, https:// and every port.

    Requests are counted by method, host, path and body; GET and HEAD only look. The same PUT or DELETE again changes
    nothing and is no effect, unless `counts` names it (`["PUT /meters/*"]`). With `honours_keys`, a repeated
    Idempotency-Key with the same request is answered with the first answer and is no effect.
    """

    def __init__(
        self,
        hosts: list[str],
        *,
        answers: dict[str, Any] | None = None,
        honours_keys: bool = False,
        counts: Sequence[str] = (),
    ) -> None:
        known = answers_from({} if answers is None else answers)
        super().__init__(hosts, HttpService(known, honours_keys=honours_keys, counts=counts_from(counts)))

    @property
    def url(self) -> str:
        """For a program whose base URL can be set."""
        return f"http://127.0.0.1:{self._aside.port}"

    def exchanges(self) -> list[str]:
        """That somebody spoke TLS to it, with a client that could not be led to speak plainly, is told here."""
        if self._aside.ask("spoken to in TLS"):
            raise Misuse(
                "The flow called https:// with a client that brings its own TLS, and the stand-in has no certificate "
                "that it would trust; make its base URL a setting, and say http:// in it while it is proved."
            )
        return super().exchanges()
