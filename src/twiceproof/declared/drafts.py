"""Draft runs: run a flow's draft under an operation of its own, with stand-ins for its effects.

Connections are used on their `draft` side. Connections without one, Python functions, other flows and messages are
replaced by stand-ins: the answers come from the file's own tests, and nothing leaves this process.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct, structs

from ..app.app import App
from ..app.functions import wrapped_flow
from ..effects.base import Look, Unknown
from ..effects.repeat import SAFE, Declared
from ..errors import FlowError, Misuse, NeedsReview, NotDone, Waiting
from ..inbound.dead_letters import find_letter
from ..inbound.replay import read_letter
from ..inbound.source import Event
from ..inbound.sources import find_source
from ..operations import Operation
from ..stores.base import Store
from .connections import Connection, Connections
from .effects import redacting
from .expression import compiled
from .flow_files import compile_file
from .lint_triggers import source_name, source_options
from .live import Triggered, scratch_app
from .model import ActingSpec, CallSpec, HttpSpec, ProbeSpec, PublishSpec, RemoteSpec, SqlSpec, SubflowSpec, TriggerSpec
from .names import read_request
from .notices import Describe
from .reading import ReadFlow, read_flow, require_sound, walk
from .releases import FlowRelease
from .template import read_text, read_value

__all__ = [
    "DRAFT",
    "DraftFlow",
    "DraftRun",
    "StandInEffect",
    "StandIns",
    "compile_draft",
    "input_of_letter",
    "run_draft",
]


log = logging.getLogger("twiceproof.flows")

DRAFT = "@draft"  # after the flow's name, so that drafts have claims, keys, limits and history of their own
KEPT = "7d"


class DraftFlow(Struct, frozen=True, eq=False):
    """A draft ready to run: a function, as `@app.flow` makes it, and the list of its stand-ins."""

    function: Any
    stood_in: tuple[str, ...]
    allowed: tuple[str, ...]  # connections and functions that are used live
    read: ReadFlow
    triggers: Triggered


class DraftRun(Struct, frozen=True):
    """How far a draft run came. `reason` says why it is not done; it goes on when it is run again."""

    flow: str
    key: str
    run: str
    state: str  # done, waiting, review, failed
    result: Any
    reason: str
    stood_in: tuple[str, ...]
    allowed_live: tuple[str, ...]
    draft: bool = True


def compile_draft(app: App, release: FlowRelease, connections: Connections, allowed: Collection[str] = ()) -> DraftFlow:
    """Compile a release as a draft.

    Args: app: The app whose ledger keeps the run. release: The release to compile. connections: The contents of
    `connections.yaml`, of which only draft sides are used. allowed: Connections, and functions as `module:function`,
    that are used live.
    """
    read = read_flow(release.text)
    file = require_sound(read, release.flow)
    stand_ins = StandIns(read, connections, frozenset(allowed))
    _refuse_unused(read, stand_ins, allowed)
    hooks = [*_webhooks(read)]  # how one reads a dead letter; no trigger starts a draft, so a poll needs no connection
    short = structs.replace(
        file, keep=KEPT, keep_history=None, keep_failed=None, about=f"DRAFT of {file.flow}", on=hooks
    )
    made = compile_file(
        scratch_app(app, release.flow),
        structs.replace(read, file=short),
        stand_ins.connections(),
        f"draft-{release.hash[:12]}",
        f"{file.flow}{DRAFT}",
    )
    flow = made.flow.of(app.settings.tenant)
    told = tuple(dict.fromkeys(stand_ins.told()))
    return DraftFlow(wrapped_flow(flow), told, tuple(sorted(allowed)), read, made.triggers)


def run_draft(made: DraftFlow, event: Any) -> DraftRun:
    """Run a draft here, as far as it goes. `event` is its input by name, or the value of a single one."""
    flow = made.function.flow
    args, kwargs = _arguments(flow.inputs.names, event)
    try:
        key = flow.key(args, kwargs)
    except TypeError as error:  # of Python, about the arguments of a function
        raise _misfit(flow.inputs.names, f": {error}") from None
    state, result, reason = "done", None, ""
    try:
        result = made.function(*args, **kwargs)
    except Waiting as error:
        state, reason = "waiting", error.why
    except NeedsReview as error:
        state, reason = "review", str(error)
    except (NotDone, FlowError) as error:
        state, reason = "failed", str(error)
    return DraftRun(flow.name, key, flow.handle(key).id, state, result, reason, made.stood_in, made.allowed)


def input_of_letter(store: Store, tenant: str, name: str, made: DraftFlow) -> Operation[Any]:
    """Return the input that a draft makes of a dead letter: of the first event of a delivery that was refused, by the
    webhook of the draft that has its name. The letter stays. Raises Misuse.
    """
    letter = yield from find_letter(store, tenant, name)
    make = made.triggers.get(("webhook", letter.hook))
    trigger = next((one for one in _webhooks(made.read) if _address(one) == letter.hook), None)
    if make is None or trigger is None:
        raise Misuse(f"{letter.id} was received by {letter.hook!r}, which is no webhook of this draft.")
    source = source_name(str(trigger.webhook))
    _, events = yield from read_letter(store, letter, find_source(source, **source_options(trigger, source)))
    given = next((make(event.payload) for event in events if isinstance(event, Event)), None)
    if given is None:
        raise Misuse(f"{letter.id} has no event that the draft takes: its `only` refuses it, or it cannot be read.")
    return given


def _webhooks(read: ReadFlow) -> list[TriggerSpec]:
    triggers = [] if read.file is None else read.file.on
    return [one for one in triggers if isinstance(one, TriggerSpec) and one.webhook is not None]


def _address(trigger: TriggerSpec) -> str:
    return trigger.name or source_name(str(trigger.webhook))


def _arguments(names: list[str], event: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By name; the value of a single input may stand by itself."""
    if isinstance(event, dict) and set(event) <= set(names):
        return (), event
    if len(names) == 1:
        return (event,), {}
    raise _misfit(names)


def _misfit(names: list[str], why: str = "") -> Misuse:
    return Misuse(f"The event does not fit the inputs {', '.join(names)}{why}; give a JSON object with these names.")


def _refuse_unused(read: ReadFlow, stand_ins: StandIns, allowed: Collection[str]) -> None:
    """Refuse a name that no step uses: it is probably misspelt, and the intended one would be replaced by a
    stand-in.
    """
    used = {name for step in walk((*read.steps, *read.on_error)) for name in stand_ins.needs(step.spec)}
    unknown = sorted(set(allowed) - used)
    if unknown:
        raise Misuse(f"No step uses {', '.join(unknown)}; there are {', '.join(sorted(used)) or 'none'}.")


# -- stand-ins -----------------------------------------------------------------------------------


class StandIns:
    """Decides for each step of a draft whether a stand-in replaces it, and answers for it."""

    def __init__(self, read: ReadFlow, connections: Connections, allowed: frozenset[str]) -> None:
        self._read = read
        self._known = connections
        self._allowed = allowed
        tests = read.file.tests if read.file is not None else None
        self._answers = [(asked, answer) for test in tests or [] for asked, answer in test.answers.items()]
        self._callbacks = {name: value for test in tests or [] for name, value in test.callbacks.items()}

    def connections(self) -> Connections:
        """Return the connections for the steps: the draft sides, and those that are allowed."""
        live = {name: to for name, to in self._known.known.items() if name in self._allowed}
        drafts = {name: to for name, to in self._known.drafts.items() if _is_usable(to)}
        return structs.replace(self._known, known={**drafts, **live}, drafts={}, stand_in=self)

    def told(self) -> Iterator[str]:
        """Return a list of the stand-ins, for people."""
        for step in walk((*self._read.steps, *self._read.on_error)):
            if self.stands_in(step.spec):
                about = getattr(step.spec, step.verb, "")
                yield about if step.verb == "http" else f"{step.verb} {about if isinstance(about, str) else ''}".strip()

    def needs(self, spec: Struct) -> set[str]:
        """Return the connections and functions that a step uses, including its probe's."""
        found = {spec.call} if isinstance(spec, CallSpec) else set()
        if isinstance(spec, HttpSpec):
            found.add(read_request(spec.http)[1])
        if isinstance(spec, RemoteSpec):
            found.add(spec.remote.partition(" ")[2].strip())
        for verb in ("sql", "mail", "notify"):
            target = getattr(spec, verb, None)
            found |= {target} if isinstance(target, str) else set()
        return found | _probed(spec)

    def stands_in(self, spec: Struct) -> bool:
        if isinstance(spec, SubflowSpec | PublishSpec):
            return True
        usable = self._allowed | {name for name, to in self._known.drafts.items() if _is_usable(to)}
        return not self.needs(spec) <= usable

    # -- answers ---------------------------------------------------------------------------------

    def describer(self, spec: Struct) -> Describe:
        """Return the function that describes the stand-in's effect instead of the step's own."""
        hide = redacting(spec) if isinstance(spec, ActingSpec) else None

        def describe(scope: Mapping[str, Any]) -> StandInEffect:
            asked = _asked(spec, scope)
            answer = self._answer(spec, asked, scope)
            return StandInEffect(asked, answer if hide is None else hide(answer))

        return describe

    def _answer(self, spec: Struct, asked: str, scope: Mapping[str, Any]) -> Any:
        found = next((answer for pattern, answer in self._answers if fnmatchcase(asked, pattern)), None)
        if isinstance(spec, HttpSpec):
            return _http_answer(spec, asked, found if isinstance(found, dict) else {}, scope)
        if found is None and isinstance(spec, SqlSpec):
            return [] if spec.query is not None else _row(spec, scope)
        return found

    def callback(self, name: str) -> Any:
        """Return the payload of a callback as the tests give it; None if they do not."""
        return self._callbacks.get(name)

    def flow_answer(self, name: str) -> Any:
        return next((answer for pattern, answer in self._answers if fnmatchcase(f"flow {name}", pattern)), None)


def _is_usable(to: Connection) -> bool:
    """Whether a connection may be used. A mail server only if mails are redirected: a draft must not write to
    customers.
    """
    return to.kind != "smtp" or bool(to.redirect)


def _probed(spec: Struct) -> set[str]:
    repeat = getattr(spec, "repeat", None)
    check = repeat.check if isinstance(repeat, ProbeSpec) else None
    if isinstance(check, str):
        return {read_request(check)[1]} if check.startswith("GET ") else {check}
    target = getattr(check, "sql", None)
    return {target} if isinstance(target, str) else set()


def _asked(spec: Struct, scope: Mapping[str, Any]) -> str:
    if isinstance(spec, HttpSpec):
        method, target, path = read_request(spec.http)
        return f"{method} {target} {read_text(path).render({**scope, 'effect_key': 'draft'})}"
    if isinstance(spec, CallSpec):
        return f"call {spec.call}"
    verb = next((verb for verb in ("sql", "mail", "notify") if isinstance(getattr(spec, verb, None), str)), "step")
    return f"{verb} {getattr(spec, verb, '')}".strip()


def _http_answer(spec: HttpSpec, asked: str, answer: dict[str, Any], scope: Mapping[str, Any]) -> Any:
    seen = {**scope, "status": answer.get("status", 200), "headers": answer.get("headers", {})}
    try:
        return compiled(spec.result).evaluate({**seen, "body": answer.get("body", {})})
    except NotDone as error:
        raise NotDone(
            f"the stand-in for {asked} has no answer from which the result can be read ({error}); give one under "
            "answers: of a test",
            final=True,
        ) from None


def _row(spec: SqlSpec, scope: Mapping[str, Any]) -> Any:
    asked = spec.upsert or spec.insert_once or spec.find_or_create
    return None if asked is None else read_value(asked.row).evaluate(scope)


class StandInEffect(Struct, frozen=True, eq=False):
    """An effect that changes nothing, with the answer of a test."""

    asked: str
    answer: Any = None

    @property
    def name(self) -> str:
        return f"stand-in {self.asked}"

    @property
    def repeat(self) -> Declared:
        return SAFE

    @property
    def result_type(self) -> Any:
        return Any

    def describe(self) -> dict[str, Any]:
        return {"stand-in": self.asked}

    def perform(self, effect_key: str) -> Any:
        log.info("DRAFT: a stand-in answers %s", self.asked)
        return self.answer

    def look(self, effect_key: str) -> Look:
        return Unknown("a stand-in did nothing")
