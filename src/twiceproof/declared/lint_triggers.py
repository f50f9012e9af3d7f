"""Checks the parts of a file around its steps: triggers, key and tests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from ..errors import Misuse, TwiceproofError
from ..flows.triggers.schedule import make_ticks
from ..inbound.hook import span
from ..inbound.source import Source
from ..inbound.sources import find_source, source_class
from ..keys.duration import lifetime
from ..keys.stability import name_sign
from .connections import Connections
from .expression import ExpressionError
from .findings import LintFindings
from .lint_names import Names, NamesCheck
from .model import TRIGGERS, FlowFile, TriggerSpec
from .names import FieldText, fields_of_value, read_request
from .nodes import Path
from .reading import ReadFlow, walk
from .template import read_text

__all__ = [
    "FlowTestExpectations",
    "RequestPattern",
    "TriggersCheck",
    "read_expectations",
    "source_name",
    "source_options",
]


SIGNED_BY_DEFAULT = {"signature": "X-Signature"}


def source_name(written: str) -> str:
    """Return a sender's name: `standard-webhooks` and `standard_webhooks` are the same."""
    return written.replace("-", "_")


class TriggersCheck:
    """Checks the key, the triggers and the tests of a file."""

    def __init__(self, read: ReadFlow, file: FlowFile, findings: LintFindings, known: Connections | None) -> None:
        self._read = read
        self._file = file
        self._findings = findings
        self._known = known

    def run(self, names: Names, names_check: NamesCheck) -> None:
        self._key(names, names_check)
        for number, trigger in enumerate(self._file.on):
            if isinstance(trigger, TriggerSpec):
                self._trigger(trigger, ("on", number))
        self._tests()

    # -- the key ---------------------------------------------------------------------------------

    def _key(self, names: Names, names_check: NamesCheck) -> None:
        path: Path = ("key",)
        try:
            text = read_text(self._file.key)
        except ExpressionError as error:
            self._findings.report("key", path, str(error), "key: shop:order:{order.id}", column=error.column + 1)
            return
        if not text.names:
            found = "every event has the same key, so the second is taken for a repeat of the first"
            self._findings.report("unit-of-work", path, found, "key: shop:order:{order.id}")
        fields = [part for part in text.parts if not isinstance(part, str)]
        for use, field in zip(text.names, fields, strict=True):
            names_check.name(use, names, FieldText("text", self._file.key, path), inputs_only=True)
            if (sign := name_sign(field)) is not None:
                instead = "an id of the event itself, such as {order.id}"
                self._findings.report("unstable-key", path, f"{field.path} {sign}", instead, column=use.column + 1)

    # -- triggers --------------------------------------------------------------------------------

    def _trigger(self, trigger: TriggerSpec, path: Path) -> None:
        kinds = [kind for kind in TRIGGERS if getattr(trigger, kind) is not None]
        if trigger.poll is not None and "every" in kinds:
            kinds.remove("every")  # of a poll, it says how often
        if len(kinds) != 1:
            found = f"a trigger is one of {', '.join(TRIGGERS)}"
            self._findings.report("trigger", path, found, "- webhook: stripe")
            return
        checks = {"webhook": self._webhook, "poll": self._poll, "schedule": self._schedule, "every": self._schedule}
        if kinds[0] in checks:
            checks[kinds[0]](trigger, path)
        self._given(trigger, path)

    def _given(self, trigger: TriggerSpec, path: Path) -> None:
        given = set(trigger.give or {})
        if trigger.give is not None and given != set(self._file.input):
            instead = f"give: {{{', '.join(f'{name}: =…' for name in self._file.input)}}}"
            self._findings.report("trigger", (*path, "give"), "give names exactly the inputs of the flow", instead)
        fields = [*fields_of_value(trigger.give or {}, (*path, "give"))]
        for name in ("only", "items"):
            if (text := getattr(trigger, name)) is not None:
                fields.append(FieldText("expression", text, (*path, name)))
        for field in fields:  # its names are those of the event, which is not known here
            self._findings.parsed(field)

    def _webhook(self, trigger: TriggerSpec, path: Path) -> None:
        name = source_name(str(trigger.webhook))
        try:
            source = source_class(name)
        except Misuse as error:
            found, _, instead = str(error).partition("; ")
            self._findings.report("trigger", (*path, "webhook"), found, instead)
            return
        if trigger.secret is None and getattr(source, "signed", False):
            self._findings.report("trigger", path, f"{trigger.webhook} signs what it sends", "secret: env:NAME")
        elif trigger.secret is not None and not trigger.secret.startswith("env:"):
            found = "a secret does not belong into the file"
            self._findings.report("trigger", (*path, "secret"), found, "secret: env:NAME")
        self._memory(name, trigger, path)

    def _memory(self, name: str, trigger: TriggerSpec, path: Path) -> None:
        """Check that keys are kept longer than a sender retries: a later retry would be a new event."""
        try:
            source = find_source(name, **source_options(trigger, name))
            keep = lifetime(self._file.keep, name="keep")
        except (Misuse, TypeError) as error:
            self._findings.report("trigger", path, str(error).partition(";")[0], "options: {…}")
            return
        window = source.retry_window if isinstance(source, Source) else 0.0
        if keep is not None and keep < window:
            found = f"{trigger.webhook} retries for {span(window)}, and the key is forgotten after {span(keep)}"
            self._findings.report("short-keep", ("keep",), found, f"keep: {span(window)}, or longer", level="warning")

    def _poll(self, trigger: TriggerSpec, path: Path) -> None:
        for needed in ("every", "http", "items"):
            if getattr(trigger, needed) is None:
                self._findings.report("trigger", path, f"a poll needs {needed}", _POLL[needed])
        if trigger.http is not None:
            self._poll_request(trigger.http, path)
        if trigger.every is not None:
            self._schedule(trigger, path)

    def _poll_request(self, http: str, path: Path) -> None:
        try:
            method, target, rest = read_request(http)
            reads = read_text(rest).names
        except (Misuse, ExpressionError) as error:
            self._findings.report("request", (*path, "http"), str(error).partition(";")[0], "GET shop /orders")
            return
        if method not in ("GET", "HEAD"):
            self._findings.report("probe-acts", (*path, "http"), f"poll: {method} … would act", "GET")
        if target not in self._file.uses:
            found = f"the connection {target} is not among uses"
            self._findings.report("unknown-connection", (*path, "http"), found, f"uses: [{target}, …]")
        for use in (use for use in reads if use.path[0] != "since"):
            found = f"{'.'.join(use.path)}: a poll knows only since"
            self._findings.report("unknown-name", (*path, "http"), found, "{since}")

    def _schedule(self, trigger: TriggerSpec, path: Path) -> None:
        when, name = (trigger.schedule, "schedule") if trigger.schedule is not None else (trigger.every, "every")
        try:
            make_ticks(when or "", trigger.tz)
        except TwiceproofError as error:
            found, _, instead = str(error).partition("; ")
            self._findings.report("trigger", (*path, name), found, instead)

    # -- tests -----------------------------------------------------------------------------------

    def _tests(self) -> None:
        if not self._file.tests:
            found = "without tests nothing can be proved, and the flow cannot be promoted"
            self._findings.report("no-test", (), found, "tests: [{name: …, input: …, expect: …}]", level="warning")
            return
        seen: set[str] = set()
        for number, test in enumerate(self._file.tests):
            path: Path = ("tests", number)
            if test.name in seen:
                found = f"{test.name} is the name of another test already"
                self._findings.report("duplicate-name", (*path, "name"), found, "a name of its own")
            seen.add(test.name)
            for rule, inner, found, instead in self._test(test):
                self._findings.report(rule, (*path, *inner), found, instead)

    def _test(self, test: Any) -> Iterator[tuple[str, Path, str, str]]:
        if (test.input is None) == (test.event is None):
            yield "test", (), "a test has input, or event", "input: {…}"
        if test.input is not None:
            for name in test.input.keys() ^ self._file.input.keys():
                if name in test.input or not str(self._file.input[name]).startswith("optional "):
                    yield "test", ("input",), f"input has the names of the flow's input, and {name} differs", name
        for request in test.answers:
            if (asked := RequestPattern.read(request)) is None or asked.connection not in self._file.uses:
                yield "test", ("answers", request), f"{request!r} is no request to a connection", "GET crm /path"
        yield from self._waits(test)
        yield from self._expectations(test.expect)

    def _waits(self, test: Any) -> Iterator[tuple[str, Path, str, str]]:
        steps = [*walk(self._read.steps)]
        approvals = {getattr(step.spec, "approve", None) for step in steps}
        callbacks = {getattr(step.spec, "callback", None) or getattr(step.spec, "wait", None) for step in steps}
        for field, given, known in (
            ("approve", test.approve, approvals),
            ("reject", test.reject, approvals),
            ("callbacks", test.callbacks, callbacks),
        ):
            for name in (name for name in given if name not in known):
                there = ", ".join(sorted(filter(None, known))) or "none"
                yield "test", (field,), f"nothing waits for {name}", f"one of {there}"

    def _expectations(self, expect: Mapping[str, Any]) -> Iterator[tuple[str, Path, str, str]]:
        for name, value in expect.items():
            path: Path = ("expect", name)
            if name == "returns":
                continue
            if name == "ends":
                if value not in ENDS:
                    yield "test", path, f"a run does not end {value!r}", f"one of {', '.join(ENDS)}"
            elif name not in COUNTS and target_of_count(name, self._file.uses) is None:
                yield "test", path, f"{name!r} is nothing that is counted", "mails, duplicates, or POST books /invoices"
            elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
                yield "test", path, f"{name} is a count", "1"


_POLL = {"every": "every: 15m", "http": "http: GET shop /orders?since={since}", "items": "items: body.orders"}


def source_options(trigger: TriggerSpec, source: str) -> dict[str, Any]:
    """Return the sender's settings. A generic one signs in X-Signature, unless its options name another header."""
    made: dict[str, Any] = dict(SIGNED_BY_DEFAULT) if source == "generic" else {}
    if trigger.id is not None:
        made["id"] = trigger.id.removeprefix("body.").removeprefix("event.")
    return {**made, **trigger.options}


# -- tests -------------------------------------------------------------------------------------


ENDS = ("done", "failed", "review", "ignored")
COUNTS = ("mails", "duplicates")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
OTHERS = ("ssh", "sql", "notify", "call", "message")  # effects that are counted by connection, function or topic


class RequestPattern(Struct, frozen=True):
    """`POST accounting /invoices`, of a test; a path may end with *."""

    method: str
    connection: str
    path: str

    @classmethod
    def read(cls, text: str) -> RequestPattern | None:
        words = text.split(None, 2)
        sound = len(words) == 3 and words[0] in METHODS and words[2].startswith("/")
        return cls(words[0], words[1], words[2]) if sound else None


class FlowTestExpectations(Struct, frozen=True):
    """What must be true after a test. `counts` are the numbers of effects by name."""

    ends: str = "done"
    returns: Any | UnsetType = UNSET
    mails: int | None = None
    duplicates: int | None = None
    counts: dict[str, int] = {}


def read_expectations(expect: Mapping[str, Any]) -> FlowTestExpectations:
    """Read `expect:`, which lint has checked."""
    counts = {name: value for name, value in expect.items() if name not in ("ends", "returns", *COUNTS)}
    return FlowTestExpectations(
        str(expect.get("ends", "done")),
        expect.get("returns", UNSET),
        expect.get("mails"),
        expect.get("duplicates"),
        counts,
    )


def target_of_count(name: str, uses: Collection[str]) -> str | None:
    """Return the connection, function or topic that a count names. None: it cannot be counted."""
    request = RequestPattern.read(name)
    if request is not None:
        return request.connection if request.connection in uses else None
    kind, _, rest = name.partition(" ")
    if kind not in OTHERS or not rest:
        return None
    return rest if kind in ("call", "message") or rest.split(" ")[0] in uses else None
