"""The grammar of `NAME.flow.yaml` as types: a file, its steps by verb, their options; the JSON Schema of all of it.

Fields whose description says *expression* are expressions; `Value`s are texts with fields, expressions that begin with
`=`, or maps and lists of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

__all__ = [
    "NAME_PATTERN",
    "TRIGGERS",
    "VERBS",
    "ActingSpec",
    "ApproveSpec",
    "BranchSpec",
    "CallSpec",
    "ChooseSpec",
    "DoneSpec",
    "EachSpec",
    "FailSpec",
    "FlowFile",
    "FlowTestSpec",
    "HttpSpec",
    "KeepSpec",
    "MailSpec",
    "NotifySpec",
    "ProbeSpec",
    "PublishSpec",
    "RemoteSpec",
    "RetrySpec",
    "RowSpec",
    "SetSpec",
    "SleepSpec",
    "SqlLookSpec",
    "SqlSpec",
    "StepSpec",
    "SubflowSpec",
    "TogetherSpec",
    "TriggerSpec",
    "UntilSpec",
    "WaitSpec",
    "names_of",
    "schema",
    "verbs_in",
]


def _refer(name: str) -> dict[str, Any]:
    return {"items": {"$ref": f"#/$defs/{name}"}}


Duration = str | int
NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Template = Annotated[str, Meta(description="A text with fields: Your order {order.id}")]
Formula = Annotated[str, Meta(description="An expression: order.total > 5000")]
Value = Annotated[Any, Meta(description="A text with fields, = and an expression, or a map or list of them")]
Steps = Annotated[list[Any], Meta(extra_json_schema=_refer("Step"), min_length=1)]
OneStep = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/$defs/Step"})]


class RetrySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How often, and after which pauses, a step is retried after a failure that did nothing."""

    attempts: Annotated[int, Meta(ge=1)] = 8
    first: Duration = 1
    most: Duration = "10m"
    within: Duration = "2d"


class SqlLookSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """`check:` as a map: a query that finds the effect. No row: it did not happen; the first row is its result."""

    sql: Annotated[str, Meta(description="The connection")]
    query: Annotated[str, Meta(description="SELECT id FROM invoices WHERE reference = :reference")]
    given: dict[str, Value] = msgspec.field(default={}, name="with")


class ProbeSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """`repeat:` as a map: how to look for the effect (`check`), or the header that carries its key (`keyed`)."""

    check: str | SqlLookSpec | UnsetType = UNSET
    found: Formula | UnsetType = UNSET
    settle: Duration = 5
    keyed: str | UnsetType = UNSET
    window: Duration = "24h"


Repeat = Literal["safe", "never", "keyed"] | ProbeSpec


class StepSpec(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The options of every step."""

    step: Annotated[Name, Meta(description="Its name in the ledger, by which its result is read")] | None = None
    when: Formula | None = msgspec.field(default=None, name="if")


class ActingSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The options of a step that acts."""

    repeat: Repeat | None = None
    timeout: Duration | None = None
    retry: RetrySpec | None = None
    undo: OneStep | None = None
    external: Template | None = None
    id: Annotated[str, Meta(description="Tells calls of one step apart: {line.sku}")] | None = None
    redact: Annotated[list[str], Meta(description="Fields of the result that are not recorded: card.number")] = []
    on_error: Literal["go on"] | Steps | None = None


class HttpSpec(ActingSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One request: METHOD, a connection, and a path."""

    http: Annotated[str, Meta(description="POST accounting /invoices")]
    query: dict[str, Value] = {}
    headers: dict[str, Value] = {}
    json: Value | UnsetType = UNSET
    form: dict[str, Value] | None = None
    text: Template | None = None
    expect: Formula | None = None
    result: Formula = "body"
    final: Annotated[list[int], Meta(description="Statuses that no retry cures")] = []


class RowSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of a table, and which of its columns are its unique key."""

    table: str
    by: list[str]
    row: dict[str, Value]


class SqlSpec(ActingSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A row, written so that a repeat does no harm; or one statement with parameters."""

    sql: Annotated[str, Meta(description="The connection")]
    query: Annotated[str, Meta(description="SELECT … WHERE id = :id; its rows are the result")] | None = None
    run: Annotated[str, Meta(description="UPDATE … WHERE id = :id; repeat must be declared")] | None = None
    given: dict[str, Value] = msgspec.field(default={}, name="with")
    upsert: RowSpec | None = None
    insert_once: RowSpec | None = None
    find_or_create: RowSpec | None = None


class AttachmentSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a mail: its name, and a text or what `keep` returned."""

    name: Template
    content: Value
    media: str = "text/plain"


class MailSpec(ActingSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One mail, with a Message-ID that is made of the effect key."""

    mail: Annotated[str, Meta(description="The connection")]
    to: Value
    subject: Template
    text: Template
    html: Template = ""
    cc: Value = ""
    attach: list[AttachmentSpec] = []


class NotifySpec(ActingSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A line to a chat's webhook, to a mailbox, or to the log."""

    notify: Annotated[str, Meta(description="The connection")]
    text: Template
    to: Value = ""


class RemoteSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A command on another machine, started once; its callback's payload is the result."""

    remote: Annotated[str, Meta(description="ssh and a connection: ssh builder", pattern="^ssh [A-Za-z]")]
    command: Value
    callback: Name
    timeout: Duration | None = None
    retry: RetrySpec | None = None


class KeepSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Store a large value beside the run; a reference to it is the result."""

    keep: Formula
    name: Template = ""
    media: str = ""


class CallSpec(ActingSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A Python function: `module:function`."""

    call: str
    given: dict[str, Value] = msgspec.field(default={}, name="with")


class SubflowSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Another flow, under its own key; its result."""

    flow: str
    given: dict[str, Value] = msgspec.field(default={}, name="with")


class PublishSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A message to a topic, recorded with the run and published by a relay."""

    publish: str
    payload: Value
    key: Template | None = None
    order: Template | None = None


class WaitSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Wait for a callback under a name."""

    wait: Name
    timeout: Duration | None = None
    default: Value | UnsetType = UNSET


class AskSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Whom to tell that an approval waits; `{link}` is the address where they decide."""

    notify: Annotated[str, Meta(description="The connection")]
    text: Template
    to: Value = ""


class ApproveSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Wait for a person's approval."""

    approve: Name
    show: Value = None
    requester: Template = ""
    ask: AskSpec | None = None
    timeout: Duration | None = None
    default: Literal["approve", "reject"] | None = None


class SleepSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Wait for a time."""

    sleep: Duration


class UntilSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Wait until a moment: an expression whose value is a date or a time."""

    until: Formula


class EachSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Steps for every item of a list. Each item has a state of its own."""

    each: Formula
    do: Steps
    id: Template | None = None
    as_: Name = msgspec.field(default="item", name="as")
    at_once: Annotated[int, Meta(ge=1, le=64)] = 8
    on_failure: Literal["fail", "go on"] = "fail"


class ChooseSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The steps of the first branch whose condition holds."""

    choose: Annotated[list[Any], Meta(extra_json_schema=_refer("Branch"), min_length=1)]


class BranchSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """`when` and `do`, or, as the last one, `else`."""

    when: Formula | None = None
    do: Steps | None = None
    else_: Steps | None = msgspec.field(default=None, name="else")


class TogetherSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Steps at the same time."""

    together: Steps


class SetSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Names for values."""

    set: dict[Name, Value]


class DoneSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """End here, with this result."""

    done: Value


class FailSpec(StepSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Fail here: what is done is undone."""

    fail: Template


VERBS: dict[str, type[StepSpec]] = {
    "http": HttpSpec,
    "sql": SqlSpec,
    "mail": MailSpec,
    "notify": NotifySpec,
    "call": CallSpec,
    "remote": RemoteSpec,
    "flow": SubflowSpec,
    "keep": KeepSpec,
    "publish": PublishSpec,
    "wait": WaitSpec,
    "approve": ApproveSpec,
    "sleep": SleepSpec,
    "until": UntilSpec,
    "each": EachSpec,
    "choose": ChooseSpec,
    "together": TogetherSpec,
    "set": SetSpec,
    "done": DoneSpec,
    "fail": FailSpec,
}


def verbs_in(data: dict[str, Any]) -> list[str]:
    """Return the verbs of a step: exactly one in a sound file."""
    return [verb for verb in VERBS if verb in data]


# -- triggers and the whole file -----------------------------------------------------------------


class TriggerSpec(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What starts a run: one of `webhook`, `schedule`, `every`, `poll`, `queue` and `manual`."""

    webhook: str | None = None
    secret: str | None = None
    id: Annotated[str, Meta(description="Where an event's id is: body.id")] | None = None
    name: str | None = None
    only: Formula | None = None
    poll: Annotated[str, Meta(description="The poll's name")] | None = None
    http: Annotated[str, Meta(description="GET shop /orders?since={since}")] | None = None
    items: Formula | None = None
    since: str | None = None
    schedule: str | None = None
    every: Duration | None = None
    overlap: Duration | None = None
    catch_up: Literal["latest", "all", "none"] | None = None
    tz: str = "UTC"
    queue: str | None = None
    manual: Annotated[str, Meta(description="What the button says")] | None = None
    give: dict[str, Value] | None = None
    options: dict[str, Any] = {}


TRIGGERS = ("webhook", "poll", "schedule", "every", "queue", "manual")


class OrderSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Of one object only newer versions are applied."""

    object: Annotated[str, Meta(description="The object's own key: shop:order:{order.id}")]
    version: Annotated[str, Meta(description="What grows with each version: {order.revision}")]


InputType = Annotated[
    str | dict[str, Any],
    Meta(description=", ".join(("text", "number", "integer", "yes_no", "list", "map", "any")) + ", or fields"),
]


class FlowTestSpec(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A test of a flow: what arrives, what the outside answers, and what must have happened."""

    name: str
    input: Annotated[dict[str, Any], Meta(description="The flow's input, by name")] | None = None
    event: Annotated[Any, Meta(description="A delivery as its sender makes it")] = None
    answers: Annotated[dict[str, Any], Meta(description="By request: POST books /invoices")] = {}
    callbacks: dict[Name, Any] = {}
    approve: list[Name] = []
    reject: list[Name] = []
    times: Annotated[int, Meta(ge=1, le=100)] = 1
    then: Annotated[list[Any], Meta(description="Later events of the same object")] = []
    rows: Annotated[dict[str, Any], Meta(description="SQL that makes a connection's tables")] = {}
    expect: dict[str, Any] = {}


class FlowFile(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A flow: its input, its key, what starts it, its steps and its result."""

    flow: Name
    key: Template
    input: dict[Name, InputType]
    steps: Steps
    about: str = ""
    version: str = "1"
    accepts: list[str] = []
    keep: Duration = "30d"
    keep_history: Duration | None = None
    keep_failed: Duration | None = None
    lease: Duration = "30s"
    ignore: list[str] = []
    on_duplicate: Literal["return_prior", "wait", "reject"] = "return_prior"
    limit: Annotated[int, Meta(ge=1)] | None = None
    limit_per: dict[str, Annotated[int, Meta(ge=1)]] | None = None
    rate: str | None = None
    priority: Literal["high", "normal", "low"] = "normal"
    order: OrderSpec | None = None
    uses: list[str] = []
    second: Annotated[bool, Meta(description="Another person than who promotes it must agree to it before")] = False
    on: list[Literal["manual"] | TriggerSpec] = []
    returns: Value = None
    on_error: Steps | None = None
    tests: list[FlowTestSpec] | None = None


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a flow file, made from the types above."""
    specs = list(VERBS.values())
    (whole, branch, *steps), parts = msgspec.json.schema_components(
        [FlowFile, BranchSpec, *specs], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A flow of Twiceproof",
        **whole,
        "$defs": {**parts, "Step": {"anyOf": steps}, "Branch": branch},
    }


def names_of(spec: type[Struct]) -> list[str]:
    """Return the fields of a type, by the names that a file has."""
    return list(spec.__struct_encode_fields__)
