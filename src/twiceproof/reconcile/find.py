"""Finder: declares the sources and checks of a reconciliation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from ..claims.claim import validate_name
from ..claims.policy import Duration
from ..errors import Misuse
from ..flows.flow import Flow
from ..flows.limits import make_rate
from ..flows.runtime import Runtime
from ..flows.step import Step
from ..inbound.hook import Hook
from ..keys.duration import seconds
from .checks import CheckKind, Comparison, pairs
from .ledger_rows import LedgerRows, LedgerSource, ledger_discrepancies
from .readers import Row, as_reader
from .sources import KeyedSource, KeyOf, SourceOrigin, refuse_unreadable

__all__ = ["Finder", "casefolded", "checked"]


def casefolded(text: str) -> str:
    """Remove outer white space and fold case: the usual normal form of a mail address."""
    return text.strip().casefold()


class Finder:
    """Declares sources and checks. A reconciliation's function receives one, and yields checks.

    `tick` is the scheduled time of the run.
    """

    def __init__(
        self,
        tick: datetime,
        runtime: Runtime,
        flows: MutableMapping[str, Flow],
        hooks: MutableMapping[str, Hook],
        steps: Sequence[Step],
    ) -> None:
        self.tick = tick
        self.sources: list[KeyedSource] = []
        self._runtime = runtime
        self._flows = flows
        self._hooks = hooks
        self._steps = steps

    def since(self, span: Duration) -> datetime:
        """Return the time `span` before the tick, for a query's parameters: the same in every attempt.

        Args:
            span: How long, such as "30d".
        """
        return self.tick - timedelta(seconds=seconds(span, name="since"))

    # -- sources ---------------------------------------------------------------------------------

    def source(
        self,
        name: str,
        rows: Any,
        *,
        key: KeyOf,
        id: str | None = None,  # noqa: A002 - the word that users know
        at: str | None = None,
        look: Callable[[str], Any] | None = None,
        where: Callable[[Row], bool] | None = None,
        normal: Callable[[str], str] | None = None,
        rate: str | None = None,
        timeout: Duration = "5m",
        shrink: float = 0.2,
        empty: bool = False,
        show: Sequence[str] = (),
    ) -> KeyedSource:
        """Declare a source, which is read once for all checks that use it.

        Args:
            name: Its name in findings.
            rows: A reader (`sql_rows`, `http_pages`, `csv_rows`, `json_rows`, `file_rows`), a list, or a function that
                returns an iterable of dicts.
            key: A template over the row (`"order:{id}"`) or a function of it; must give the same text as the run's key.
            id: A template for the row's own id, which distinguishes two rows of one key.
            at: A template for the time at which the row was created.
            look: A function that reads one key again and returns its rows. Without it the whole source is read again.
            where: Selects the rows to compare.
            normal: A function applied to the key's text, such as `str.casefold`.
            rate: How often `look` is called ("5/s").
            timeout: How long to wait for the next row.
            shrink: The part of its rows that may have disappeared since the last complete reading.
            empty: Whether it may have no rows at all.
            show: Further fields that a finding shows.
        """
        refuse_unreadable(name, key)
        if not 0 <= shrink < 1:
            raise Misuse(f"shrink={shrink!r} is not a part of one; write 0.2 for 20 %.")
        if any(known.origin.name == name for known in self.sources):
            raise Misuse(f"Two sources are called {name!r}; give one of them another name.")
        origin = SourceOrigin(
            validate_name("source", name),
            as_reader(rows),
            timeout=seconds(timeout, name="timeout"),
            shrink=shrink,
            empty=empty,
            rate=None if rate is None else make_rate(rate),
        )
        given: dict[str, Any] = {
            "key": key,
            "id": id,
            "at": at,
            "look": look,
            "where": where,
            "normal": normal,
            "show": tuple(show),
        }
        return self._added(KeyedSource(len(self.sources), name, origin, **given))

    def ledger(self, flow: Any, *, step: Any = None, id: str | None = None) -> KeyedSource:  # noqa: A002 - as of sources
        """Declare the ledger as a source: the runs of a flow, by their keys.

        Args:
            flow: The function under @app.flow.
            step: The function under @app.step or @app.effect whose effect is compared; by default the run as a whole.
            id: A template over `receipt` (what the step returned) and `external`, which makes the destination's id; by
                default the receipt's `id`, or else the external id.
        """
        known = getattr(flow, "flow", None)
        if not isinstance(known, Flow):
            raise Misuse("find.ledger needs a function under @app.flow.")
        declared = None if step is None else getattr(step, "step", None)
        if step is not None and not isinstance(declared, Step):
            raise Misuse("find.ledger(step=…) needs a function under @app.step or @app.effect.")
        if id is not None and declared is None:
            raise Misuse("find.ledger(id=…) is of what a step returned; name the step, too.")
        rows = LedgerRows(self._runtime.store, self._runtime.tenant, known, declared, id)
        name = known.name if declared is None else f"{known.name}.{declared.name}"
        origin = SourceOrigin(f"ledger.{name}", rows, timeout=300.0, shrink=1.0, empty=True, rate=None)
        return self._added(LedgerSource(len(self.sources), origin.name, origin, rows))

    def _added(self, source: KeyedSource) -> KeyedSource:
        self.sources.append(source)
        return source

    def _view(self, source: KeyedSource, name: str, **changes: Any) -> KeyedSource:
        return self._added(source.derived(len(self.sources), name, **changes))

    # -- checks ----------------------------------------------------------------------------------

    def duplicates(self, source: KeyedSource, *, then: Any = None, most: int = 1, name: str = "") -> Comparison:
        """Find keys with more than one row: two invoices for one order.

        Args:
            source: Where to look.
            then: What to do about each: `notify` (the default), `start(flow)`, `compensate(step)`, or a step.
            most: How many rows one key may have.
            name: The check's name in findings.
        """
        _refuse_no_source("duplicates", source)
        if source.origin.reader.unstable and not source.has_ids:
            raise Misuse(f"Rows of {source.name} may come twice while it is read; tell them apart: give it id=.")
        return Comparison("duplicates", name or f"duplicates:{source.name}", (source,), then, most)

    def missing(self, source: KeyedSource, there: KeyedSource, *, then: Any = None, name: str = "") -> Comparison:
        """Find keys of a source that the destination does not have.

        Args:
            source: Where each key should come from.
            there: The destination, which should have them all.
            then: What to do about each.
            name: The check's name in findings.
        """
        return self._pair("missing", source, there, then, name)

    def extra(self, there: KeyedSource, source: KeyedSource, *, then: Any = None, name: str = "") -> Comparison:
        """Find keys of a destination that the source does not have.

        Args:
            there: The destination.
            source: Where each of its keys should come from.
            then: What to do about each.
            name: The check's name in findings.
        """
        return self._pair("extra", there, source, then, name)

    def differ(
        self,
        source: KeyedSource,
        there: KeyedSource,
        *,
        fields: Mapping[str, str] | Sequence[str],
        tolerance: Any = None,
        then: Any = None,
        name: str = "",
    ) -> Comparison:
        """Find keys whose rows, one on each side, do not have the same values.

        Args:
            source: One side.
            there: The other side.
            fields: Names of fields, `{"total": "amount"}` where they differ.
            tolerance: How far numbers may be apart ("0.01"), for all fields or by name. With one, text that is a
                number counts as that number.
            then: What to do about each.
            name: The check's name in findings.
        """
        _refuse_no_source("differ", source, there)
        ours, theirs = pairs(fields, tolerance)
        left, right = self._view(source, source.name, fields=ours), self._view(there, there.name, fields=theirs)
        return self._pair("differ", left, right, then, name)

    def disagree(self, ledger: KeyedSource, there: KeyedSource, *, then: Any = None, name: str = "") -> Comparison:
        """Find keys about which the ledger and a destination do not agree, either way.

        Args:
            ledger: `find.ledger(…)`.
            there: The destination.
            then: What to do about each.
            name: The check's name in findings.
        """
        if not isinstance(ledger, LedgerSource):
            raise Misuse("find.disagree compares the ledger with a destination; give find.ledger(flow) first.")
        return self._pair("disagree", ledger, there, then, name)

    def _pair(self, kind: CheckKind, left: KeyedSource, right: KeyedSource, then: Any, name: str) -> Comparison:
        _refuse_no_source(kind, left, right)
        if left.origin is right.origin:
            raise Misuse(f"find.{kind} compares {left.name} with itself; give it two sources.")
        return Comparison(kind, name or f"{kind}:{left.name}:{right.name}", (left, right), then)

    def ledger_only(self, *, name: str = "ledger") -> Comparison:
        """Find what the ledger alone shows: runs in review, keys that are forgotten before their sender stops retrying,
        and steps that recorded no external id although they declare one.

        Args:
            name: The check's name in findings.
        """
        runtime = self._runtime
        direct = partial(ledger_discrepancies, runtime.store, runtime.tenant, self._hooks, self._steps, name)
        return Comparison("ledger", name, (), direct=direct)

    # -- ready-made symptoms ---------------------------------------------------------------------

    def same_identity(
        self,
        source: KeyedSource,
        *,
        by: Sequence[str] = ("email",),
        normal: Callable[[str], str] = casefolded,
        then: Any = None,
    ) -> Comparison:
        """Find two records with one identity: two customers with one mail address.

        Args:
            source: The records.
            by: The fields that make the identity.
            normal: Brings texts that people regard as equal into one form; by default ignores case and outer white
                space.
            then: What to do about each.
        """
        _refuse_no_source("same_identity", source)
        key = ":".join(f"{{{field}}}" for field in by)
        view = self._view(source, source.name, key=key, normal=normal)
        return self.duplicates(view, then=then, name=f"same-identity:{source.name}")

    def charges_per_order(
        self, source: KeyedSource, *, order: str, where: Callable[[Row], bool] | None = None, then: Any = None
    ) -> Comparison:
        """Find orders that were charged more than once.

        Args:
            source: The charges.
            order: A template for the order's id (`"{metadata[order]}"`).
            where: Which charges count, such as those that succeeded and were not refunded.
            then: What to do about each.
        """
        _refuse_no_source("charges_per_order", source)
        view = self._view(source, source.name, key=order, where=where or source.where)
        return self.duplicates(view, then=then, name=f"charges-per-order:{source.name}")

    def mails_per_customer(
        self, source: KeyedSource, *, customer: str, since: Duration = "30d", at: str | None = None, then: Any = None
    ) -> Comparison:
        """Find customers who were sent the same mail more than once.

        Args:
            source: The log of sent mails.
            customer: A template for the customer and the kind of mail (`"{to}:{template}"`).
            since: Only mails of this time before the tick, where the source has `at`.
            at: A template for the time of a mail; by default the source's own.
            then: What to do about each.
        """
        _refuse_no_source("mails_per_customer", source)
        begin, own = self.since(since).timestamp(), source.where
        time_of = self._view(source, source.name, at=at or source.at)._moment

        def recent(row: Row) -> bool:
            sent = time_of(row)
            return (own is None or own(row)) and (sent is None or sent >= begin)

        self.sources.pop()
        view = self._view(source, source.name, key=customer, where=recent, normal=casefolded, at=at or source.at)
        return self.duplicates(view, then=then, name=f"mails-per-customer:{source.name}")


def _refuse_no_source(verb: str, *given: object) -> None:
    for one in given:
        if not isinstance(one, KeyedSource):
            raise Misuse(f"find.{verb} takes what find.source(…) or find.ledger(…) returned, and not {one!r:.60}.")


def checked(checks: Iterable[Any]) -> list[Comparison]:
    """Return the checks that a reconciliation's function yielded. Two checks of one name would resolve each other's
    findings.
    """
    found: list[Comparison] = []
    for check in checks:
        if not isinstance(check, Comparison):
            raise Misuse(f"A reconciliation yields checks, and {check!r:.60} is none; yield find.duplicates(…).")
        if any(known.label == check.label for known in found):
            raise Misuse(f"Two checks are called {check.label!r}; give one of them another name=.")
        found.append(check)
    return found
