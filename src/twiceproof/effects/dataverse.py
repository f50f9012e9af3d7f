"""Rows of Dataverse by alternate key: `dataverse.upsert`, `create_only`, `update_only` and `change`.

A single request does it, atomically on the server: without a condition PATCH creates or updates, with `If-None-Match:
*` it only creates, with `If-Match: *` it only updates and never creates, with `If-Match: <etag>` it updates the version
that was read. 412 means two different things, told apart by the error's code.

Checked against our simulator (`twiceproof.prove.simulators`), not against Microsoft's service.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ..errors import Misuse, NotDone, OutcomeUnknown
from ..keys.key import is_blank
from .base import Absent, Happened, Look, Unknown
from .etag import described_change
from .json_api import ApiAnswer, JsonApi, Token, encoded, json_api, plain_values
from .repeat import SAFE, Declared, check

__all__ = [
    "DataverseChange",
    "DataverseRow",
    "DataverseWrite",
    "change",
    "create_only",
    "environment",
    "update_only",
    "upsert",
]

VERSION = "v9.2"
HEADERS = {"OData-Version": "4.0", "OData-MaxVersion": "4.0"}
EXISTS = ("0x80060892", "0x80040237")  # a row with this key exists
CHANGED = "0x80060882"  # the row is not the version that was read
UNUSABLE = re.compile(r"[/<>*%&:\\?+\x00-\x1f]")  # not accepted in the address of a row
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SLACK = 5.0  # seconds that a request may still be under way after its time limit
TRIES = 5
MARKS = 20  # keys of changes that a mark column keeps: 20 of 36 letters fit into 850
MISSING, PRECONDITION = 404, 412

Verb = Literal["upsert", "create_only", "update_only"]
Change = Callable[[dict[str, Any]], Mapping[str, Any]]


class DataverseRow(Struct, frozen=True):
    """A row that was written. `created` is None where the answer does not say; `id` is the row's own address."""

    key: dict[str, Any]
    created: bool | None = None
    etag: str = ""
    id: str = ""


def environment(url: str, auth: Token, *, version: str = VERSION, timeout: float = 30.0) -> JsonApi:
    """Return an environment: `environment("https://shop.crm4.dynamics.com", auth=get_token)`."""
    return json_api(f"{url.rstrip('/')}/api/data/{version}", auth, timeout=timeout)


def upsert(org: JsonApi, table: str, key: Mapping[str, Any], values: Mapping[str, Any]) -> DataverseWrite:
    """Create the row with this key, or update it. `table` is the entity set's name (`accounts`)."""
    return _write("upsert", org, table, key, values)


def create_only(
    org: JsonApi, table: str, key: Mapping[str, Any], values: Mapping[str, Any], *, mark: str = ""
) -> DataverseWrite:
    """Create the row with this key.

    An existing row is not changed, and is a final refusal. `mark` is a text column that gets the effect key, so that a
    row created by an earlier attempt is recognised with certainty. Without it, a row with the same values counts as
    ours after a lost answer.
    """
    return _write("create_only", org, table, key, values, mark)


def update_only(org: JsonApi, table: str, key: Mapping[str, Any], values: Mapping[str, Any]) -> DataverseWrite:
    """Update the row with this key. A missing row is a refusal; it is never created."""
    return _write("update_only", org, table, key, values)


def change(org: JsonApi, table: str, key: Mapping[str, Any], change: Change, *, mark: str = "") -> DataverseChange:
    """Read a row, compute new values from it, and write them if the row has not changed since; otherwise read again.

    `change` takes the row and returns the columns to write; it must return the same for the same row. Plain values that
    it captured are part of the effect: a replay with other values stops for review. If applying it twice differs from
    applying it once (an increment), name a text column of 850 characters as `mark`: it keeps the keys of the last
    changes, so that a change whose answer was lost is recognised.
    """
    if not callable(change):
        raise Misuse("dataverse.change takes a function from a row to the columns to write; pass one.")
    return DataverseChange(org, _name(table), _key(key), change, _name(mark) if mark else "")


def _write(
    verb: Verb, org: JsonApi, table: str, key: Mapping[str, Any], values: Mapping[str, Any], mark: str = ""
) -> DataverseWrite:
    found = _key(key)
    return DataverseWrite(verb, org, _name(table), found, plain_values(values, without=found), mark and _name(mark))


class DataverseWrite(Struct, frozen=True):
    """`upsert(…)`, `create_only(…)` or `update_only(…)`: `safe`, and `create_only` is checked."""

    verb: Verb
    org: JsonApi
    table: str
    key: dict[str, Any]
    values: dict[str, Any]
    mark: str = ""

    @property
    def name(self) -> str:
        return f"{self.verb} {self.table}"

    @property
    def repeat(self) -> Declared:
        return check(self.look, settling=self.org.timeout + SLACK) if self.verb == "create_only" else SAFE

    @property
    def result_type(self) -> Any:
        return DataverseRow

    def describe(self) -> dict[str, Any]:
        return {self.verb: f"{self.org.url}/{self.table}", "key": self.key, "values": self.values}

    def perform(self, effect_key: str) -> DataverseRow:
        _refuse_inactive_key(self.org, self.table, self.key)
        condition = {"create_only": {"If-None-Match": "*"}, "update_only": {"If-Match": "*"}}.get(self.verb, {})
        values = {**self.values, **({self.mark: effect_key} if self.mark else {})}
        answer = _patch(self, values, condition, effect_key)
        if answer.status == PRECONDITION and answer.code in EXISTS and self.verb != "update_only":
            return self._existing(effect_key, answer)
        if answer.status == MISSING and self.verb == "update_only":
            raise NotDone(
                f"{self._what} is not there, and update_only never creates; use upsert to create it.", final=True
            )
        self.org.settle(answer, self._what)
        return _row(self.key, answer, created={201: True, 200: False}.get(answer.status))

    def _existing(self, effect_key: str, answer: ApiAnswer) -> DataverseRow:
        """A row exists: from an earlier attempt, or from another writer. An upsert that lost a race updates it at the
        next attempt.
        """
        if self.verb == "upsert":
            raise NotDone(f"{self._what} was created by another at this moment; it can be tried again.")
        found = _read(self.org, self.table, self.key) if self.mark else None
        if found is not None and found.body.get(self.mark) == effect_key:
            return _row(self.key, found, created=True)
        raise NotDone(f"{self._what} is there already ({answer.told}); use upsert to change it.", final=True)

    @property
    def _what(self) -> str:
        return f"{self.verb} of {self.table}({_shown(self.key)})"

    def look(self, effect_key: str) -> Look:
        return _looking(lambda: self._look(effect_key))

    def _look(self, effect_key: str) -> Look:
        found = _read(self.org, self.table, self.key)
        if found is None:
            return Absent()
        if self.mark:
            ours = found.body.get(self.mark) == effect_key
        else:
            ours = all(found.body.get(column) == value for column, value in self.values.items())
        created = True if self.verb == "create_only" else None
        return Happened(_row(self.key, found, created=created)) if ours else Unknown("a row with other values is there")


class DataverseChange(Struct, frozen=True):
    """`change(…)`: `safe` if applying it twice equals applying it once; with a mark it is checked.

    Of two requests that carry the ETag of the same version, at most one is applied. So if no answer comes, the row is
    read and the change is sent again: the lost request has either been applied, or can no longer be. Tries follow at
    once; when they are used up, the step's retry policy waits, with jitter.
    """

    org: JsonApi
    table: str
    key: dict[str, Any]
    change: Change
    mark: str = ""

    @property
    def name(self) -> str:
        return f"change {self.table}"

    @property
    def repeat(self) -> Declared:
        return check(self.look, settling=TRIES * self.org.timeout + SLACK) if self.mark else SAFE

    @property
    def result_type(self) -> Any:
        return DataverseRow

    def describe(self) -> dict[str, Any]:
        by = described_change(self.change)
        return {"change": f"{self.org.url}/{self.table}", "key": self.key, "by": by}

    def perform(self, effect_key: str) -> DataverseRow:
        _refuse_inactive_key(self.org, self.table, self.key)
        silences: list[OutcomeUnknown] = []
        try:
            return self._applied(effect_key, silences)
        except NotDone:
            if silences:  # an earlier try may have been applied
                raise silences[-1] from None
            raise

    def _applied(self, effect_key: str, silences: list[OutcomeUnknown]) -> DataverseRow:
        for _ in range(TRIES):
            found = self._read()
            if self._was_changed_by(effect_key, found):
                return _row(self.key, found, created=False)
            try:
                answer = self._try(effect_key, found)
            except OutcomeUnknown as error:
                silences.append(error)
                continue
            if answer.status != PRECONDITION or answer.code != CHANGED:
                self.org.settle(answer, self._what)
                return _row(self.key, answer, created=False)
        raise NotDone(f"{self._what} met {TRIES} changes by others; it can be tried again.")

    def _try(self, effect_key: str, found: ApiAnswer) -> ApiAnswer:
        row = {name: value for name, value in found.body.items() if "@" not in name}
        values = plain_values(self.change(dict(row)), without=self.key)
        if self.mark:
            values[self.mark] = " ".join([*_marks(row, self.mark), effect_key][-MARKS:])
        elif plain_values(self.change({**row, **values})) != values:
            raise Misuse(
                f"{self._what}: applied twice, the change gives other values than applied once; give it a mark=, a "
                "text column by which a change whose answer was lost is recognised."
            )
        etag = str(found.body.get("@odata.etag") or found.headers.get("etag", ""))
        if not etag:
            raise NotDone(
                f"{self._what}: the row has no ETag; switch optimistic concurrency on for its table.", final=True
            )
        return _patch(self, values, {"If-Match": etag}, effect_key)

    def _read(self) -> ApiAnswer:
        found = _read(self.org, self.table, self.key)
        if found is None:
            raise NotDone(f"{self._what} found no row; create it first.", final=True)
        return found

    def _was_changed_by(self, effect_key: str, found: ApiAnswer) -> bool:
        return bool(self.mark) and effect_key in _marks(found.body, self.mark)

    @property
    def _what(self) -> str:
        return f"change of {self.table}({_shown(self.key)})"

    def look(self, effect_key: str) -> Look:
        return _looking(lambda: self._look(effect_key))

    def _look(self, effect_key: str) -> Look:
        if not self.mark:
            return Unknown("the change leaves no mark in the row")
        found = _read(self.org, self.table, self.key)
        if found is None:
            return Absent()
        if self._was_changed_by(effect_key, found):
            return Happened(_row(self.key, found, created=False))
        full = len(_marks(found.body, self.mark)) >= MARKS
        return Unknown(f"the row keeps the last {MARKS} changes, and this is not among them") if full else Absent()


# -- requests ------------------------------------------------------------------------------------------


def _key(key: Mapping[str, Any]) -> dict[str, Any]:
    if not key:
        raise Misuse("A row is named by its alternate key; give key={column: value}.")
    found = plain_values({_name(column): value for column, value in key.items()})
    for column, value in found.items():
        if isinstance(value, bool) or not isinstance(value, str | int) or (isinstance(value, str) and is_blank(value)):
            raise Misuse(f"The key's column {column} is a text or a whole number, not {value!r}; give one.")
        if isinstance(value, str) and UNUSABLE.search(value):
            raise Misuse(
                f"Dataverse cannot address a row by {value[:60]!r}: / < > * % & : \\ ? + are not accepted in the value "
                "of a key. Use a hash of it as the key, and keep the text in another column."
            )
    return found


def _name(text: str) -> str:
    if not isinstance(text, str) or not NAME.fullmatch(text):
        raise Misuse(f"{text!r} is not the name of a table or column; use its logical name.")
    return text


def _shown(key: Mapping[str, Any]) -> str:
    return ",".join(f"{column}={_literal(value)}" for column, value in key.items())


def _literal(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _path(table: str, key: Mapping[str, Any]) -> str:
    return f"/{table}({','.join(f'{column}={encoded(_literal(value))}' for column, value in key.items())})"


def _patch(
    effect: DataverseWrite | DataverseChange, values: Any, condition: Mapping[str, str], effect_key: str
) -> ApiAnswer:
    headers = {**HEADERS, "Prefer": "return=representation", **condition}
    params, path = {"$select": ",".join(effect.key)}, _path(effect.table, effect.key)
    return effect.org.call("PATCH", path, json=values, params=params, headers=headers, effect_key=effect_key)


def _read(org: JsonApi, table: str, key: Mapping[str, Any]) -> ApiAnswer | None:
    answer = org.call("GET", _path(table, key), headers=HEADERS)
    if answer.status == MISSING:
        return None
    org.settle(answer, f"reading {table}({_shown(key)})")
    if not isinstance(answer.body, dict):
        raise OutcomeUnknown(f"reading {table}({_shown(key)}) was answered without a row.")
    return answer


def _row(key: dict[str, Any], answer: ApiAnswer, *, created: bool | None) -> DataverseRow:
    body = answer.body if isinstance(answer.body, dict) else {}
    etag = str(body.get("@odata.etag") or answer.headers.get("etag", ""))
    return DataverseRow(key, created, etag, answer.headers.get("odata-entityid", ""))


def _marks(row: Mapping[str, Any], mark: str) -> list[str]:
    return str(row.get(mark) or "").split()


def _looking(work: Callable[[], Look]) -> Look:
    try:
        return work()
    except (NotDone, OutcomeUnknown, msgspec.ValidationError) as error:
        return Unknown(str(error), failed=True)


_active: set[tuple[str, str, frozenset[str]]] = set()  # keys that were seen to be usable


def _refuse_inactive_key(org: JsonApi, table: str, key: Mapping[str, Any]) -> None:
    """Refuse a key that the table does not have or whose index is not built: it would not prevent a second row."""
    wanted = org.url, table, frozenset(key)
    if wanted in _active:
        return
    expand = "Keys($select=KeyAttributes,EntityKeyIndexStatus)"
    params = {"$select": "LogicalName", "$filter": f"EntitySetName eq '{table}'", "$expand": expand}
    answer = org.require("GET", "/EntityDefinitions", params=params, headers=HEADERS)
    found = [one for entity in answer.body["value"] for one in entity["Keys"]]
    states = [str(one["EntityKeyIndexStatus"]) for one in found if frozenset(one["KeyAttributes"]) == wanted[2]]
    if states != ["Active"]:
        state = f"is {states[0]}, and not Active" if states else "does not exist"
        raise NotDone(
            f"the alternate key of {table} on {', '.join(sorted(key))} {state}; define it, wait until its index is "
            "built, then try again.",
            final=not states,
        )
    _active.add(wanted)
