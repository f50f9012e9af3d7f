"""DynamoTable: rows as items of one table, changed by TransactWriteItems; what the service's errors mean.

boto3's own retries are switched off: a retry inside the driver would turn a success into a conflict. Only the store
above can distinguish the two, by the nonce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
)

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
from .url import DynamoDbUrl

__all__ = ["DynamoTable", "code_of"]

SECONDS_TO_CONNECT, SECONDS_TO_ANSWER = 3.0, 5.0
AT_ONCE = 16  # requests
READ_LIMIT = 100  # items of a BatchGetItem
ROUNDS = 20  # of requests for what a BatchGetItem left unprocessed
MOST_CHANGES = 100  # of a transaction
MOST_BYTES = 3_500_000  # of a transaction, whose limit is 4 MB
FAILED = "ConditionalCheckFailed"
INVALID = {"ItemCollectionSizeLimitExceeded", "ValidationError"}

# The service did nothing, and may do it later.
CLEAN = {
    "ProvisionedThroughputExceededException",
    "ProvisionedThroughputExceeded",
    "RequestLimitExceeded",
    "ThrottlingException",
    "ThrottlingError",
    "LimitExceededException",
    "TransactionConflict",
    "TransactionConflictException",
}
NOT_SENT = (EndpointConnectionError, ConnectTimeoutError)


class DynamoTable:
    """One table: `pk` is the lane, `sk` the row's key, `n` its number, `v` its data."""

    checks = True
    most_changes = MOST_CHANGES

    def __init__(self, target: DynamoDbUrl, clock: Clock) -> None:
        self.target = target
        self.name = target.table
        self.clock = ServerClock(clock)
        self.requests = 0  # counted for tests and benches
        self._service = ServiceClient(lambda: _client(target), AT_ONCE)

    # -- rows --------------------------------------------------------------------------------------

    def read(self, places: Sequence[Place]) -> Sequence[LaneRow | None]:
        if len(places) == 1:
            answer = self.ask("get_item", TableName=self.name, Key=_key(places[0]), ConsistentRead=True)
            return [_row(answer["Item"]) if "Item" in answer else None]
        parts = [places[start : start + READ_LIMIT] for start in range(0, len(places), READ_LIMIT)]
        rows = {row.place: row for part in self._service.workers.each(self._read_part, parts) for row in part}
        return [rows.get(place) for place in places]

    def _read_part(self, places: Sequence[Place]) -> list[LaneRow]:
        """Read all of them: keys that the service leaves unprocessed are requested again, and never treated as
        absent.
        """
        found: list[LaneRow] = []
        left: Any = {self.name: {"Keys": [_key(place) for place in places], "ConsistentRead": True}}
        for _ in range(ROUNDS):
            answer = self.ask("batch_get_item", RequestItems=left)
            found += [_row(item) for item in answer.get("Responses", {}).get(self.name, ())]
            left = answer.get("UnprocessedKeys")
            if not left:
                return found
        raise Throttled(TimeoutError(f"{len(left[self.name]['Keys'])} keys stayed unprocessed"))

    def range(self, lane: int, after: str, before: str, limit: int) -> Sequence[LaneRow]:
        """An answer ends at 1 MB or earlier: it is the last one only if it has no LastEvaluatedKey."""
        rows: list[LaneRow] = []
        start: dict[str, Any] = {}
        while len(rows) < limit:
            answer = self.ask(
                "query",
                TableName=self.name,
                KeyConditionExpression="pk = :lane AND sk BETWEEN :first AND :last",
                ExpressionAttributeValues={
                    ":lane": {"S": str(lane)},
                    ":first": {"S": after + "!"},
                    ":last": {"S": before},
                },
                ConsistentRead=True,
                Limit=limit - len(rows),
                **start,
            )
            rows += [_row(item) for item in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                break
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
        return rows

    def ranges(self, asked: Sequence[tuple[int, str, str, int]]) -> Sequence[Sequence[LaneRow]]:
        return self._service.workers.each(lambda one: self.range(*one), asked)

    def change_each(self, transactions: Sequence[Sequence[Change]]) -> Sequence[Answer]:
        together = Together(self._service.workers, self._change_together, MOST_CHANGES, MOST_BYTES)
        return together.each(transactions)

    def _change_together(self, transactions: Sequence[Sequence[Change]]) -> Sequence[Answer | None]:
        """Carry out all of them or none. None: it was not to blame, and is sent again without those that were."""
        changes = [change for one in transactions for change in one]
        try:
            self._send(changes)
        except _Cancelled as error:
            return error.verdicts(transactions)
        except BadWrite as error:  # which of them it is about is not told
            alone = len(transactions) == 1
            return [error] if alone else [self._change_together([one])[0] for one in transactions]
        except Exception as error:  # noqa: BLE001 - the answer for these transactions alone
            return [error] * len(transactions)
        return [Landed([change.number for change in one]) for one in transactions]

    def _send(self, changes: Sequence[Change]) -> None:
        if len(changes) == 1 and not changes[0].check:
            self._change_one(changes[0])
            return
        items = [self._item(change) for change in changes]
        # If the network delivers the request twice, the service does it once. Two requests never share a token: the
        # second of two equal ones, such as checks, would be answered without a look at the rows.
        self.ask("transact_write_items", TransactItems=items, ClientRequestToken=uuid4().hex)

    def _change_one(self, change: Change) -> None:
        """Change a single row without a transaction, which would cost twice as much."""
        ((verb, wanted),) = self._item(change).items()
        self.ask("put_item" if verb == "Put" else "delete_item", **wanted)

    def _item(self, change: Change) -> dict[str, Any]:
        wanted: dict[str, Any] = {"TableName": self.name, **_condition(change.expected)}
        if change.expected is not ANY:
            wanted["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if change.data is not None and not change.check:
            item = {**_key(change.place), "n": {"N": str(change.number)}, "v": {"B": change.data}}
            return {"Put": {**wanted, "Item": item}}
        return {"ConditionCheck" if change.check else "Delete": {**wanted, "Key": _key(change.place)}}

    # -- asking ------------------------------------------------------------------------------------

    def ask(self, verb: str, **wanted: Any) -> Any:
        """Send one request, and translate its failure."""
        self.requests += 1
        sent = self.clock.monotonic()
        try:
            answer = getattr(self.client, verb)(**wanted)
        except ClientError as error:
            self._heard(error.response, sent)
            raise meaning(error) from error
        except (NoCredentialsError, NoRegionError) as error:
            why = str(error).rstrip(".")
            raise Misuse(
                f"DynamoDB cannot be reached: {why}. Set AWS_REGION and credentials, as boto3 finds them, or name the "
                "region in the store's URL."
            ) from None
        except NOT_SENT as error:
            raise Disconnected(error, sent=False) from error
        except (BotoCoreError, OSError) as error:
            raise Disconnected(error, sent=True) from error
        self._heard(answer, sent)
        return answer

    def _heard(self, answer: Any, sent: float) -> None:
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.clock.heard(date_of(headers.get("date")), sent, self.clock.monotonic())

    @property
    def client(self) -> Any:
        return self._service.get()

    def close(self) -> None:
        self._service.close()

    def abandon(self) -> None:
        self.clock.abandon()
        self._service.abandon()


def _client(target: DynamoDbUrl) -> Any:
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=SECONDS_TO_CONNECT,
        read_timeout=SECONDS_TO_ANSWER,
        max_pool_connections=AT_ONCE + 4,
        parameter_validation=False,
    )
    try:
        session = boto3.session.Session()
        return session.client("dynamodb", region_name=target.region, endpoint_url=target.endpoint, config=config)
    except NoRegionError:
        raise Misuse("No AWS region is set; name it in the store's URL: dynamodb://eu-central-1/TABLE.") from None


def _key(place: Place) -> dict[str, Any]:
    return {"pk": {"S": str(place[0])}, "sk": {"S": place[1]}}


def _row(item: Any) -> LaneRow:
    return LaneRow((int(item["pk"]["S"]), item["sk"]["S"]), int(item["n"]["N"]), bytes(item["v"]["B"]))


def _condition(expected: Any) -> dict[str, Any]:
    if expected is ANY:
        return {}
    if expected is ABSENT:
        return {"ConditionExpression": "attribute_not_exists(#p)", "ExpressionAttributeNames": {"#p": "pk"}}
    return {
        "ConditionExpression": "#n = :n",
        "ExpressionAttributeNames": {"#n": "n"},
        "ExpressionAttributeValues": {":n": {"N": str(expected)}},
    }


# -- what errors mean ----------------------------------------------------------------------------


def code_of(error: ClientError) -> str:
    """Return the code after the #; emulators differ in what precedes it."""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition("#")[2]


class _Cancelled(Exception):
    """Nothing was done. `reasons`: one for each change, with the item that was found where the service returned it."""

    def __init__(self, reasons: Sequence[Any]) -> None:
        super().__init__(", ".join(sorted({_code(reason) for reason in reasons} - {"None"})))
        self.reasons = reasons

    def verdicts(self, transactions: Sequence[Sequence[Change]]) -> Sequence[Answer | None]:
        if len(self.reasons) != sum(map(len, transactions)):
            return [RowsDiffer()] * len(transactions)
        reasons = iter(self.reasons)
        return [_verdict(one, [next(reasons) for _ in one]) for one in transactions]


def _code(reason: Any) -> str:
    return str(reason.get("Code"))


def _verdict(changes: Sequence[Change], reasons: Sequence[Any]) -> Answer | None:
    codes = {_code(reason) for reason in reasons}
    if FAILED in codes:
        return _differing(changes, reasons)
    if codes & INVALID:
        return _not_taken(", ".join(sorted(codes & INVALID)))
    return Throttled(TimeoutError(", ".join(sorted(codes & CLEAN)))) if codes & CLEAN else None


def _differing(changes: Sequence[Change], reasons: Sequence[Any]) -> RowsDiffer:
    """Return the rows found: the one that was returned, if it is the only possible one; otherwise all are read."""
    compared = [nth for nth, change in enumerate(changes) if change.expected is not ANY]
    if len(compared) == 1 and (item := reasons[compared[0]].get("Item")):
        row = _row(item)
        return RowsDiffer({row.place: row})
    return RowsDiffer()


def meaning(error: ClientError) -> Exception:
    code = code_of(error)
    known = MEANINGS.get(code)
    if known is not None:
        return known(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in CLEAN or status == 429:
        return Throttled(error, _retry_after(error))
    if status >= 500 or status in UNANSWERED or code in ("TransactionInProgressException", "InternalServerError"):
        return Disconnected(error, sent=True)  # it may have been done
    return StoreError(f"DynamoDB refused the request ({code}: {_message(error)}); see twiceproof doctor.")


def _cancelled(error: ClientError) -> Exception:
    reasons = error.response.get("CancellationReasons") or []
    if {_code(reason) for reason in reasons} & {FAILED, *INVALID, *CLEAN}:
        return _Cancelled(reasons)
    return Disconnected(error, sent=True)


def _conditional(error: ClientError) -> Exception:
    return _Cancelled([{"Code": FAILED, "Item": error.response.get("Item")}])


def _invalid(error: ClientError) -> Exception:
    return _not_taken(_message(error))


def _not_taken(why: str) -> BadWrite:
    return BadWrite(f"DynamoDB does not take this write ({why}); it is too large or its text is not valid.")


def _denied(error: ClientError) -> Exception:
    return StoreError(f"DynamoDB refused us ({_message(error)}); check the credentials and the rights of their role.")


def _gone(error: ClientError) -> Exception:
    return StoreError("The DynamoDB table does not exist (any more); create it again, or restore it from a backup.")


MEANINGS: dict[str, Callable[[ClientError], Exception]] = {
    "TransactionCanceledException": _cancelled,
    "ConditionalCheckFailedException": _conditional,
    "ValidationException": _invalid,
    "ItemCollectionSizeLimitExceededException": _invalid,
    "AccessDeniedException": _denied,
    "UnrecognizedClientException": _denied,
    "ExpiredTokenException": _denied,
    "ResourceNotFoundException": _gone,
}


def _message(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", ""))[:200]


def _retry_after(error: ClientError) -> float | None:
    text = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    return float(text) if text.isdecimal() else None
