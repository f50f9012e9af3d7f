"""EffectStep: a step whose function only describes an effect, which the engine performs and looks for.

The description is made at every call, also in a replay, so it must depend only on the arguments. It determines the
step's declaration and the digest that the ledger records; its `perform` and `look` do the rest.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Coroutine
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any
from uuid import uuid4

from msgspec import structs

from ..claims.claim import validate_name
from ..claims.results import ResultType
from ..effects.base import Effect, Look, first_attempt_at, header_text, look_of, outgoing_headers
from ..effects.repeat import NEVER, TRANSACTION, Declared, Retry, as_retry
from ..errors import Misuse
from ..operations import await_, block
from .engine.context import correlation, current_attempt, current_session
from .engine.decisions import StepPlan
from .engine.step_identity import arguments_digest
from .runtime import Runtime
from .step import Step, StepCall, called_with
from .transaction import Transaction

__all__ = ["EffectBlocks", "EffectStep", "perform_here", "unnamed_step"]


LONGEST_STEM = 64  # letters of an unnamed effect's verb
Build = Callable[..., Effect[Any]] | Callable[..., Coroutine[Any, Any, Effect[Any]]]


class EffectStep(Step):
    """One function under @app.effect. Each call's effect says how its step may be repeated."""

    def __init__(
        self,
        build: Build,
        runtime: Runtime,
        *,
        retry: Retry | None = None,
        timeout: float | None = None,
        name: str | None = None,
        own_id: str | Callable[..., str] | None = None,
        undo: Step | None = None,
        external: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        if not callable(build):
            raise Misuse("@app.effect takes keywords only; write it as @app.effect(undo=refund).")
        plan = StepPlan(NEVER, as_retry(retry), timeout)  # each call has a plan of its own
        super().__init__(_performing(build), plan, name=name, own_id=own_id, undo=undo, external=external)
        self.results = ResultType(self.function, self.name, Any)  # its annotation is that of the description
        self.blocking = _blocking(build) if self.is_async else None
        self._build = build
        self._runtime = runtime
        self._results: dict[Any, ResultType] = {}
        self._several: Callable[[Any], tuple[str, ...]] | None = None  # of one call's effect

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: dict[str, Any]) -> StepCall:
        """Describe the effect of a call. The ledger keeps a digest of the description, and not of the arguments."""
        effect = _described(self._build, args, kwargs)
        return StepCall(self._bound(effect), name, args, kwargs, arguments, arguments_digest(effect.describe()))

    def asked(self, given: dict[str, Any]) -> str:
        return arguments_digest(_described(self._build, (), given).describe())

    def probe_of(self, given: dict[str, Any], asked: str) -> Callable[..., Any] | None:
        """The look of the effect that these arguments describe, if it is the one that was asked for."""
        try:
            effect = _described(self._build, (), called_with(self._build, given))
            is_known = not asked or arguments_digest(effect.describe()) == asked
        except Exception:  # noqa: BLE001 - the function needs what the ledger does not know
            return None
        return _with_look(effect).probe if is_known and getattr(effect, "can_look", True) else None

    def probe_call(self, given: dict[str, Any]) -> Callable[[], Any]:
        """A look blocks, as `perform` does: for a flow that awaits, it is called on a thread."""
        probe = self.plan.repeat.probe
        if not self.is_async or probe is None:
            return super().probe_call(given)
        import asyncio

        return functools.partial(asyncio.to_thread, probe, **given)

    def several(self, value: Any) -> tuple[str, ...]:
        return () if self._several is None else self._several(value)

    def _bound(self, effect: Effect[Any]) -> Step:
        """Return this step with what follows from one effect: its declaration, its look and the type of its result."""
        bound = copy.copy(self)
        bound.plan = structs.replace(self.plan, repeat=_with_look(effect))
        bound.results = self._result_type(effect.result_type)
        bound._several = getattr(effect, "found_several", None)
        joined = getattr(effect, "joined", None)
        work = joined(self._runtime.store) if joined is not None else None
        if work is not None:
            bound.plan = structs.replace(self.plan, repeat=TRANSACTION, timeout=None)
            store, limit = self._runtime.store, self.plan.timeout
            bound.transaction = Transaction(lambda: store, _on_connection(work), getattr(work, "connect", None), limit)
        return bound

    def _result_type(self, returned: Any) -> ResultType:
        found = self._results.get(returned)
        if found is None:
            found = self._results[returned] = ResultType(self.function, self.name, returned)
            found.prepare()
        return found


def _described(build: Build, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Effect[Any]:
    """Call the describing function. An `async def` may await nothing: a description is made from the arguments."""
    made: Any = build(*args, **kwargs)
    if inspect.iscoroutine(made):
        made = _value_of(made, build)
    if not isinstance(made, Effect):
        raise Misuse(
            f"{_named(build)} under @app.effect returned {type(made).__name__}, and not an effect; return what a block "
            "makes, such as http.post(…), or use @app.step for work of your own."
        )
    return made


def _value_of(made: Coroutine[Any, Any, Any], build: Build) -> Any:
    try:
        made.send(None)
    except StopIteration as end:
        return end.value
    made.close()
    raise Misuse(
        f"{_named(build)} under @app.effect awaits something; describe the effect, and await in a step before it."
    )


def _named(build: Build) -> str:
    return str(getattr(build, "__name__", "a function"))


def _with_look(effect: Effect[Any]) -> Declared:
    """The effect's declaration, with the probe called as the effect is: with the headers that lead back here."""
    declared = effect.repeat
    if declared.probe is None:
        return declared

    def look(effect_key: str) -> Look:
        return look_of(_sending_headers(effect.look, effect_key))

    return structs.replace(declared, probe=look)


def _performing(build: Build) -> Callable[..., Any]:
    """Return the function that stands for the step: it describes the effect and performs it."""
    blocking = functools.wraps(build)(_blocking(build))
    if not inspect.iscoroutinefunction(build):
        return blocking

    @functools.wraps(build)
    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        import asyncio

        return await asyncio.to_thread(blocking, *args, **kwargs)

    return awaiting


def _blocking(build: Build) -> Callable[..., Any]:
    return lambda *args, **kwargs: _sending_headers(_described(build, args, kwargs).perform, _key())


def _key() -> str:
    """The step's effect key; outside of a run, where nothing is repeated, one of its own."""
    attempt = current_attempt()
    return f"tp_{uuid4().hex}" if attempt is None else attempt.effect_key


def _sending_headers(work: Callable[[str], Any], key: str) -> Any:
    sent = {name: header_text(value) for name, value in outgoing_context().items()}
    attempt = current_attempt()
    token = outgoing_headers.set(MappingProxyType(sent))
    began = first_attempt_at.set(None if attempt is None else attempt.first_at)
    try:
        return work(key)
    finally:
        first_attempt_at.reset(began)
        outgoing_headers.reset(token)


def outgoing_context() -> dict[str, str]:
    """Return the headers by which a receiver's logs lead back here: the correlation id and the trace context."""
    known = correlation()
    return {**({"correlation-id": known} if known else {}), **_trace()}


def _trace() -> dict[str, str]:
    """The trace context of OpenTelemetry, where the program uses it."""
    import sys

    if "opentelemetry" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def _on_connection(work: Callable[[Any, str], Any]) -> Callable[..., Any]:
    def within(connection: Any, *args: Any, **kwargs: Any) -> Any:
        return work(connection, _key())

    return within


# -- effects without a name of their own ---------------------------------------------------------


_UNFIT = re.compile(r"[^A-Za-z0-9_.@-]+")


def perform_here(runtime: Runtime, effect: Effect[Any]) -> Any:
    """Perform an effect as a step of the run that is calling, under the effect's own name; plainly outside of a run.

    What the call returns is awaited in an `async def` flow.
    """
    session = current_session()
    if session is None:
        return _sending_headers(effect.perform, _key())
    awaited = session.drive is await_
    step = unnamed_step(effect, runtime, awaited=awaited)
    called = session.step(step, (), {})
    return session.do(called, names=(step.name,), called="effects") if awaited else block(called)


def unnamed_step(effect: Effect[Any], runtime: Runtime, *, awaited: bool) -> EffectStep:
    """Return the step of an effect that no function describes: it is named as the effect is."""
    verb, _, target = effect.name.partition(" ")
    stem = validate_name("step", _UNFIT.sub("-", verb)[:LONGEST_STEM] or "effect")
    own_id = (lambda: target) if target else None

    async def described() -> Effect[Any]:
        return effect

    return EffectStep(described if awaited else lambda: effect, runtime, name=stem, own_id=own_id)


BLOCKS = ("http", "sql", "mail", "files", "s3", "dataverse", "table")


class EffectBlocks:
    """What `app.effects` is: the blocks of `twiceproof.effects`, whose effects are performed at once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __getattr__(self, block_name: str) -> Any:
        if block_name not in BLOCKS:
            raise AttributeError(f"app.effects has no {block_name!r}; there are {', '.join(BLOCKS)}")
        return _Block(self._runtime, import_module(f"twiceproof.effects.{block_name}"))


class _Block:
    """One block: its functions that make effects perform them here, and others are called as they are."""

    def __init__(self, runtime: Runtime, module: ModuleType) -> None:
        self._runtime = runtime
        self._module = module

    def __getattr__(self, verb: str) -> Any:
        make = getattr(self._module, verb, None)
        if make is None or verb.startswith("_"):
            block_name = self._module.__name__.rpartition(".")[2]
            made_here = [name for name in self._module.__all__ if name.islower()]
            raise AttributeError(f"app.effects.{block_name} has no {verb!r}; there are {', '.join(made_here)}")

        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            value = make(*args, **kwargs)
            return perform_here(self._runtime, value) if isinstance(value, Effect) else value

        return made
