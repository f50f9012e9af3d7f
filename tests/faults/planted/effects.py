"""Bugs of effects: a request that is sent again, or without its key, or a look whose answer counts too soon."""

from __future__ import annotations

import time
from typing import Any

from msgspec import structs

from twiceproof.effects import dataverse, http_answers
from twiceproof.effects.http_client import HttpClient
from twiceproof.effects.http_request import HttpCall
from twiceproof.effects.sql_rows import RowWriter
from twiceproof.errors import OutcomeUnknown
from twiceproof.flows.engine import decisions, step_errors


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


def window_from_the_last_start() -> None:
    """The time for which a provider knows a key is counted from the last attempt, and not from the first."""
    again, on_error = decisions._after_failed_attempt, decisions.on_error

    def since_the_last(plan: Any, entry: Any, now: float, *, crashed: bool) -> Any:
        return again(
            plan, structs.replace(entry, note=structs.replace(entry.note, first_at=None)), now, crashed=crashed
        )

    def failed(plan: Any, starts: int, first_at: float, verdict: Any, now: float, **more: Any) -> Any:
        return on_error(plan, starts, now, verdict, now, **more)

    decisions._after_failed_attempt = since_the_last
    step_errors.on_error = failed  # type: ignore[attr-defined]


def replayed_error_is_retried() -> None:
    """An error that the provider gives again to the same key is asked for again."""
    by_row = http_answers._by_row

    def forgetful(*given: Any) -> Any:
        found = by_row(*given)
        return OutcomeUnknown(str(found)) if isinstance(found, OutcomeUnknown) else found

    http_answers._by_row = forgetful


def found_then_inserted() -> None:
    """A caller that found no row claims to have created it, even if another one did."""
    either = RowWriter.find_or_insert

    def guessed(self: Any) -> Any:
        before = self.find()
        time.sleep(0.005)  # long enough for another caller to be as far
        return either(self)[0], before is None

    RowWriter.find_or_insert = guessed  # type: ignore[method-assign]


def if_match_star_as_upsert() -> None:
    """An upsert in Dataverse is sent with `If-Match: *`, which never creates."""
    patch = dataverse._patch

    def conditional(effect: Any, values: Any, condition: Any, effect_key: str) -> Any:
        return patch(effect, values, condition or {"If-Match": "*"}, effect_key)

    dataverse._patch = conditional


def absent_too_soon() -> None:
    """An effect that is not found at once counts as not done, although the request may still be on its way."""
    decisions._settled_at = lambda plan, entry, lapsed: 0.0
