"""Bugs of effects: a request that is sent again, or without its key, or a look that is believed too soon."""

from __future__ import annotations

from typing import Any

from twiceproof.effects.http_client import HttpClient
from twiceproof.effects.http_request import HttpCall
from twiceproof.errors import OutcomeUnknown


def sent_again_without_key() -> None:
    """The client sends a request again by itself, under another key."""
    send = HttpClient.send

    def twice(self: Any, request: Any) -> Any:
        try:
            return send(self, request)
        except OutcomeUnknown:
            others = {name: value for name, value in request.headers.items() if "dempoten" not in name}
            return send(self, type(request)(request.method, request.url, others, request.body, request.timeout))

    HttpClient.send = twice  # type: ignore[method-assign]


def key_left_out() -> None:
    """A provider's key is not sent."""
    request = HttpCall.request
    HttpCall.request = lambda self, effect_key, provider=None: request(self, effect_key)  # type: ignore[method-assign]
