"""AzureTable: rows as entities, a lane as a partition, changed by entity-group transactions under ETags.

The client's own retries are switched off: a retry inside the driver would turn a success into a conflict. An entity is
compared only when it is changed, so a check writes the same row again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.data.tables import TableClient, UpdateMode

from ...clock import Clock
from ...errors import BadWrite, Misuse, StoreError
from ..base import Disconnected
from ..rows.server_clock import ServerClock, date_of
from ..rows.table import (
    ABSENT,
    ANY,
    UNANSWERED,
    Answer,
    Change,
    Landed,
    LaneRow,
    Place,
    RowsDiffer,
    ServiceClient,
    Throttled,
    Together,
)
from . import batch
from .url import CONNECTION_STRING, AzureTableUrl

__all__ = ["AzureTable", "ConditionFailed", "code_of"]

SECONDS_TO_CONNECT, SECONDS_TO_ANSWER = 3, 5
AT_ONCE = 8  # requests; the client keeps ten connections
MOST_CHANGES = 100  # of a transaction
MOST_BYTES = 2_900_000  # of a transaction, whose limit is 4 MiB as Base64
BLAMED = re.compile(r"(\d+):")  # how the message begins of an error in a transaction
T = TypeVar("T")

# What the service says when a condition did not hold; it did nothing.
CONDITIONS = {"EntityAlreadyExists", "UpdateConditionNotSatisfied", "ConditionNotMet", "ResourceNotFound"}
INVALID = {"EntityTooLarge", "RequestBodyTooLarge", "PropertyValueTooLarge", "InvalidInput", "ContentLengthExceeded"}
DENIED = {
    "AuthenticationFailed",
    "AuthorizationFailure",
    "AuthorizationPermissionMismatch",
    "InsufficientAccountPermissions",
}


class ConditionFailed(Exception):
    """A condition did not hold."""


class _DateListener(SansIOHTTPPolicy[Any, Any]):
    """Notes the date of every answer."""

    def __init__(self, clock: ServerClock) -> None:
        self._clock = clock

    def on_request(self, request: Any) -> None:
        request.context["twiceproof_sent"] = self._clock.monotonic()

    def on_response(self, request: Any, response: Any) -> None:
        sent = request.context.get("twiceproof_sent", self._clock.monotonic())
        self._clock.heard(date_of(response.http_response.headers.get("Date")), sent, self._clock.monotonic())


class AzureTable:
    """One table."""

    checks = False
    most_changes = MOST_CHANGES

    def __init__(self, target: AzureTableUrl, clock: Clock) -> None:
        self.target = target
        self.clock = ServerClock(clock)
        self.requests = 0  # counted for tests and benches
        self._service = ServiceClient(lambda: _opened(target, self.clock), AT_ONCE)

    # -- rows --------------------------------------------------------------------------------------

    def read(self, places: Sequence[Place]) -> Sequence[LaneRow | None]:
        return self._service.workers.each(self._read_one, places)

    def _read_one(self, place: Place) -> LaneRow | None:
        try:
            return _row(self.ask(lambda client: client.get_entity(str(place[0]), place[1])))
        except ConditionFailed:
            return None

    def range(self, lane: int, after: str, before: str, limit: int) -> Sequence[LaneRow]:
        """A page may be short or even empty: it is the last one only if there is no continuation token."""
        asked = f"PartitionKey eq '{lane}' and RowKey gt '{after}' and RowKey lt '{before}'"
        rows: list[LaneRow] = []
        pages = self.ask(lambda client: client.query_entities(asked, results_per_page=min(limit, 1_000)).by_page())
        while len(rows) < limit:
            page = self.ask(lambda client: next(pages, None))
            if page is None:
                break
            rows += [_row(entity) for entity in page]
        return rows[:limit]

    def ranges(self, asked: Sequence[tuple[int, str, str, int]]) -> Sequence[Sequence[LaneRow]]:
        return self._service.workers.each(lambda one: self.range(*one), asked)

    def change_each(self, transactions: Sequence[Sequence[Change]]) -> Sequence[Answer]:
        together = Together(self._service.workers, self._change_together, MOST_CHANGES, MOST_BYTES, within_lane=True)
        return together.each(transactions)

    def _change_together(self, transactions: Sequence[Sequence[Change]]) -> Sequence[Answer | None]:
        """Carry out all of them or none. None: it was not to blame, and is sent again without the one that was."""
        changes = [change for one in transactions for change in one]
        try:
            etags = iter(self._send(changes))
        except (ConditionFailed, BadWrite) as error:
            verdict = RowsDiffer() if isinstance(error, ConditionFailed) else error
            if len(transactions) == 1:
                return [verdict]
            blamed = _blamed(error, transactions)
            if blamed is None:
                return [self._change_together([one])[0] for one in transactions]
            return [verdict if nth == blamed else None for nth in range(len(transactions))]
        except Exception as error:  # noqa: BLE001 - the answer for these transactions alone
            return [error] * len(transactions)
        return [Landed([next(etags) for _ in one]) for one in transactions]

    def _send(self, changes: Sequence[Change]) -> Sequence[str | None]:
        if len(changes) == 1 and changes[0].data is not None:
            return [self.ask(lambda client: _changed(client, changes[0]))["etag"]]
        return self.ask(lambda client: batch.send(client, changes))

    # -- asking ------------------------------------------------------------------------------------

    def ask(self, work: Callable[[TableClient], T]) -> T:
        """Send one request, and translate its failure."""
        self.requests += 1
        client = self.client
        try:
            return work(client)
        except HttpResponseError as error:
            raise meaning(error) from error
        except ServiceRequestError as error:
            raise Disconnected(error, sent=not _refused(error)) from error
        except (AzureError, OSError, AttributeError) as error:  # the client stumbles over an answer that was cut off
            raise Disconnected(error, sent=True) from error

    @property
    def client(self) -> TableClient:
        return self._service.get()

    def close(self) -> None:
        self._service.close()

    def abandon(self) -> None:
        self.clock.abandon()
        self._service.abandon()


def _opened(target: AzureTableUrl, clock: ServerClock) -> TableClient:
    client_options: dict[str, Any] = {
        "retry_total": 0,
        "connection_timeout": SECONDS_TO_CONNECT,
        "read_timeout": SECONDS_TO_ANSWER,
        "per_retry_policies": [_DateListener(clock)],
        "logging_enable": False,
    }
    if target.account is None:
        return _by_connection_string(target.table, client_options)
    from azure.identity import DefaultAzureCredential

    return TableClient(target.endpoint, target.table, credential=DefaultAzureCredential(), **client_options)


def _by_connection_string(table: str, client_options: dict[str, Any]) -> TableClient:
    secret = os.environ.get(CONNECTION_STRING, "")
    if not secret:
        raise Misuse(f"{CONNECTION_STRING} is not set; set it, or name the account: azure-table://ACCOUNT/TABLE.")
    try:
        return TableClient.from_connection_string(secret, table, **client_options)
    except ValueError:  # its text may quote the key
        raise Misuse(f"{CONNECTION_STRING} cannot be read; copy it again from the storage account.") from None


def _changed(client: TableClient, change: Change) -> Any:
    """Put one entity without a batch, which would cost more. Never used for a deletion, because the client treats one
    that finds nothing as done.
    """
    data = change.data or b""
    entity = {"PartitionKey": str(change.place[0]), "RowKey": change.place[1], **batch.columns_of(data)}
    if change.expected is ABSENT:
        return client.create_entity(entity)
    if change.expected is ANY:
        return client.upsert_entity(entity, mode=UpdateMode.REPLACE)
    return client.update_entity(
        entity, mode=UpdateMode.REPLACE, etag=change.expected, match_condition=MatchConditions.IfNotModified
    )


def _row(entity: Any) -> LaneRow:
    pieces: list[bytes] = []
    while (piece := entity.get(f"v{len(pieces)}")) is not None:
        pieces.append(bytes(piece))
    return LaneRow((int(entity["PartitionKey"]), entity["RowKey"]), entity.metadata["etag"], b"".join(pieces))


# -- what errors mean ----------------------------------------------------------------------------


def code_of(error: HttpResponseError) -> str:
    found = getattr(error, "error_code", None)
    return str(getattr(found, "value", found) or "")


def meaning(error: HttpResponseError) -> Exception:
    code, status = code_of(error), error.status_code or 0
    if isinstance(error, ClientAuthenticationError) and error.response is None:  # its text is a page long
        return StoreError(
            "Signing in to Azure failed: azure-identity found no credential that works. Give the machine a managed "
            "identity, set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET, or run az login."
        )
    if status < 400:  # the answer was cut off, or cannot be read: the client reports that without a status
        return Disconnected(error, sent=True)
    if code == "TableNotFound":
        return StoreError("The table does not exist (any more); create it again, or restore it from a backup.")
    if status == 429 or (status == 503 and code in ("ServerBusy", "TooManyRequests")):
        return Throttled(error, _retry_after(error))
    if status >= 500 or status in UNANSWERED:
        return Disconnected(error, sent=True)  # including OperationTimedOut: it may have been done
    return _refusal(code, status)


def _refusal(code: str, status: int) -> Exception:
    if code in INVALID or status == 413:
        return BadWrite(f"Azure Table Storage does not take this write ({code}); it is too large.")
    if code in CONDITIONS or (not code and status in (404, 409, 412)):
        return ConditionFailed(code)
    if code in DENIED or status in (401, 403):
        return StoreError(f"Azure Table Storage refused us ({code}); check the credentials and their role.")
    return StoreError(f"Azure Table Storage refused the request ({status} {code}); see twiceproof doctor.")


def _blamed(error: Exception, transactions: Sequence[Sequence[Change]]) -> int | None:
    """Return which transaction the service names, by the number of a change of all of them."""
    named = BLAMED.match(str(getattr(error.__cause__, "message", "")))
    if named is None:
        return None
    owners = [nth for nth, one in enumerate(transactions) for _ in one]
    number = int(named[1])
    return owners[number] if number < len(owners) else None


def _refused(error: ServiceRequestError) -> bool:
    text = repr(error.inner_exception or error)
    return "NewConnectionError" in text or "ConnectTimeout" in text or "Connection refused" in text


def _retry_after(error: HttpResponseError) -> float | None:
    headers = getattr(error.response, "headers", {}) or {}
    text = headers.get("Retry-After") or ""
    return float(text) if text.isdecimal() else None
