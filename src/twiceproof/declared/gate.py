"""The gate: the conditions for a release to go live. Each condition is one line, and none can be skipped.

Evidence is only read here: `twiceproof flows test` and `twiceproof prove --record` create it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from msgspec import Struct

from ..errors import Misuse
from ..operations import Operation
from ..stores.base import Store, scan_all
from ..version import __version__
from .connections import Connection, Connections, secret_of
from .lint import lint
from .model import FlowFile, TriggerSpec
from .names import read_request
from .nodes import LintProblem
from .reading import ReadFlow, called_flows, read_flow, walk
from .releases import (
    LIVE_KIND,
    FlowProof,
    FlowRelease,
    draft_of,
    function_digests,
    live_of,
    read_live,
    release_name,
    release_of,
    scenarios_told,
)
from .tables import ask_database, index_problems
from .template import key_template

__all__ = [
    "DEPTH",
    "GateCheck",
    "calling_back",
    "check_called",
    "check_callers",
    "check_file",
    "check_key",
    "check_proof",
    "check_second",
    "check_triggers",
    "key_of",
    "live_called",
    "minor_of",
    "others_live",
]


DEPTH = 2  # a second kill, during the recovery from the first
PATIENCE = 3.0  # seconds for a host to answer
PORTS = {"http": 80, "https": 443}
SSH_PORT = 22


class GateCheck(Struct, frozen=True):
    """One condition of a promotion: whether it holds, what was found, and what to do if it does not."""

    name: str
    ok: bool
    found: str
    instead: str = ""


Reach = Callable[[str, int], str]  # host and port → why it cannot be reached, or ""


def minor_of(version: str) -> str:
    return ".".join(version.split(".")[:2])


# -- evidence ------------------------------------------------------------------------------------


CalledFlows = Mapping[str, FlowRelease | None]  # by name, as they are live; None: no file of it is


def check_proof(release: FlowRelease, proof: FlowProof | None, tenant: str, called: CalledFlows) -> Iterator[GateCheck]:
    """`called` are the flows that the content calls: they are proved with it."""
    again = f"twiceproof flows test {release.flow}.flow.yaml --store …" if release.text else "twiceproof prove --record"
    if proof is None:
        yield GateCheck("evidence", False, f"there is no evidence for this content ({release.hash[:12]})", again)
        return
    problems = [*_foreign(release, proof, tenant), *_changed(release, proof, called), *_not_enough(proof)]
    for found in problems:
        yield GateCheck("evidence", False, found, again)
    if not problems:
        told = scenarios_told(proof.scenarios, len(proof.results))
        yield GateCheck("evidence", True, f"proved with {told}, by {proof.by or 'nobody'}")


def _foreign(release: FlowRelease, proof: FlowProof, tenant: str) -> Iterator[str]:
    """Yield the reasons why the evidence is for something else."""
    if proof.hash != release.hash:
        yield f"the evidence is for another content ({proof.hash[:12]}, and not {release.hash[:12]})"
    if (proof.tenant, proof.flow) != (tenant, release.flow):
        yield f"the evidence is for {proof.flow} of the tenant {proof.tenant}, and not for {release.flow} of {tenant}"
    if proof.tests != release.tests:
        yield "the evidence is for other tests than the content has"
    if minor_of(proof.package) != minor_of(__version__):
        yield f"the evidence was made with version {proof.package} of twiceproof, and this is {__version__}"


def _changed(release: FlowRelease, proof: FlowProof, called: CalledFlows) -> Iterator[str]:
    """Yield what the content calls and was another one when it was proved: flows, and Python functions."""
    live = [one for one in called.values() if one is not None]
    for one in live:
        proved = proof.flows.get(one.flow)
        if proved != one.hash:
            was = "without it" if proved is None else f"with another content of it ({proved[:12]})"
            yield f"it calls {one.flow}, of which {one.name} is live ({one.hash[:12]}), and the evidence was made {was}"
    here = {name: digest for one in (release, *live) for name, digest in functions_here(one).items()}
    # Those of a flow that is not live are not known, which is told by itself.
    names = {*here} if len(live) < len(called) else {*proof.functions, *here}
    changed = sorted(name for name in names if proof.functions.get(name) != here.get(name))
    if changed:
        yield f"the evidence was made with other code of {', '.join(changed)} than is here"


def _not_enough(proof: FlowProof) -> Iterator[str]:
    """Yield what the evidence leaves open, and what shows that the flow is not safe."""
    if not proof.results:
        yield "no test was run, so nothing is proved"
    elif all(test.ignored for test in proof.results):
        yield "the event of every test starts nothing, so nothing is proved; add a test that starts a run"
    if proof.depth < DEPTH:
        yield f"it was run to depth {proof.depth}, and {DEPTH} is needed: kills during the recovery"
    for test in proof.results:
        if not test.safe:
            yield f"the test {test.name!r} is not safe to repeat"
        if not test.planned or test.completed < test.planned:
            yield f"the test {test.name!r} is incomplete: {test.completed} of {test.planned} scenarios were run"
        if test.unobserved:
            yield f"in the test {test.name!r} the effects of {', '.join(test.unobserved)} were not observed"
        for unmet in test.unmet:
            yield f"the test {test.name!r} expects something else: {unmet}"


# -- the file and what it needs here -------------------------------------------------------------


def check_file(read: ReadFlow, connections: Connections, reach: Reach | None = None) -> Iterator[GateCheck]:
    """An error prevents a promotion. A warning does not, and is listed for the person who promotes."""
    found = [*connections.problems, *lint(read, connections)]
    errors = [_problem_line(one) for one in found if one.level == "error"]
    warnings = [_problem_line(one) for one in found if one.level == "warning"]
    if errors:
        more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        yield GateCheck("lint", False, errors[0] + more, "twiceproof flows lint FILE")
    elif warnings:
        count = f"{len(warnings)} warning{'' if len(warnings) == 1 else 's'}"
        yield GateCheck("lint", True, f"no errors, {count}: {'; '.join(warnings)}")
    else:
        yield GateCheck("lint", True, "no problems")
    yield from _check_secrets(read)
    for name in sorted(_used(read)):
        yield _check_connection(name, connections.known.get(name), connections.file + connections.note, reach or _reach)
    for problem in index_problems(read, connections.known):
        if problem.level == "error":  # one that does not answer is refused above
            yield GateCheck("table", False, _problem_line(problem), problem.instead)


def _problem_line(one: LintProblem) -> str:
    return f"{one.place.line}:{one.place.column}: {one.rule}: {one.found}"


def _used(read: ReadFlow) -> set[str]:
    """Return the connections of a file: those that it declares, and those of its steps."""
    used = set(read.file.uses) if read.file is not None else set()
    for step in walk((*read.steps, *read.on_error)):
        target = getattr(step.spec, step.verb, None)
        if step.verb in ("sql", "mail", "notify") and isinstance(target, str):
            used.add(target)
        if step.verb == "http" and isinstance(target, str):
            used.add(read_request(target)[1])
    return used


def _check_secrets(read: ReadFlow) -> Iterator[GateCheck]:
    for trigger in _triggers(read.file):
        if trigger.secret is not None:
            missing = _missing_secret(trigger.secret)
            found = missing or f"the secret of {trigger.webhook} is there"
            yield GateCheck("trigger", not missing, found, "set it where the server runs" if missing else "")


def _check_connection(name: str, to: Connection | None, file: str, reach: Reach) -> GateCheck:
    if to is None:
        return GateCheck("connection", False, f"{name} is not in {file}", f"{name}: {{live: …}}")
    given = (to.bearer, to.password, to.key, to.known_hosts, to.sql, to.webhook, *to.headers.values())
    references = [one for one in given if one is not None and one.startswith(("env:", "file:"))]
    for reference in references:
        if why := _missing_secret(reference):
            return GateCheck("connection", False, f"{name}: {why}", "set it here and where the workers run")
    place = _place_of(to)
    why = ask_database(to) if to.sql is not None else "" if place is None else reach(*place)
    if why:
        return GateCheck("connection", False, f"{name}: {why}", "correct its live side, or open the way to it")
    answers = "it answers" if place or to.sql is not None else "it is named; nothing is asked of it here"
    return GateCheck("connection", True, f"{name}: {answers}" + (", and its secrets are there" if references else ""))


def _missing_secret(reference: str) -> str:
    """Return why a secret is missing, without its value; "" if it is not."""
    try:
        found = secret_of(reference)()
    except Misuse as error:
        return str(error).partition(";")[0]
    return "" if found else f"{reference} is not set"


def _place_of(to: Connection) -> tuple[str, int] | None:
    """Return host and port, if the file names them; an address that is a secret is not read."""
    if to.http is not None:
        parts = urlsplit(to.http)
        return str(parts.hostname), parts.port or PORTS.get(parts.scheme, 443)
    if to.smtp is not None:
        host, _, port = to.smtp.partition(":")
        return host, int(port or 587)
    return None if to.ssh is None else (to.ssh, SSH_PORT)


def _reach(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as error:
        return f"{host}:{port} does not answer ({error.strerror or type(error).__name__})"
    return ""


# -- other flows, and the release before ---------------------------------------------------------


def live_called(store: Store, tenant: str, read: ReadFlow) -> Operation[dict[str, FlowRelease | None]]:
    """Return what is live of the flows that a file calls, and of those that these call."""
    found: dict[str, FlowRelease | None] = {}
    names = called_flows(read)
    while names:
        name = names.pop(0)
        if name in found or (read.file is not None and name == read.file.flow):
            continue
        live = yield from live_of(store, tenant, name)
        found[name] = release = None if live is None else (yield from release_of(store, tenant, name, live.hash))
        if release is not None and not release.text:
            found[name] = None
        elif release is not None:
            names += called_flows(read_flow(release.text))
    return found


def calling_back(store: Store, tenant: str, read: ReadFlow, called: CalledFlows) -> Operation[set[str]]:
    """Return the flows that a file calls, that are not live, and whose drafts call this flow: each would have to be
    live before the other."""
    own = "" if read.file is None else read.file.flow
    found = set()
    for name in (name for name, release in called.items() if release is None):
        draft = yield from draft_of(store, tenant, name)
        if draft is not None and draft.text and own in called_flows(read_flow(draft.text)):
            found.add(name)
    return found


def check_called(flow: str, called: CalledFlows, circling: Collection[str] = ()) -> Iterator[GateCheck]:
    """Check that the flows that a file calls are live: what a call runs must be known, to be proved."""
    for name, release in called.items():
        if name in circling:
            found = f"it calls {name}, of which no release of a file is live, and whose draft calls {flow}"
            instead = f"promote {name} without its call of {flow} first, then {flow}, then {name} with the call"
            yield GateCheck("called", False, found, instead)
        elif release is None:
            found = f"it calls {name}, of which no release of a file is live"
            instead = f"first: twiceproof flows promote {name}; if it is a flow in Python, write it in a file, too"
            yield GateCheck("called", False, found, instead)
        else:
            yield GateCheck("called", True, f"it calls {name}, of which {release.name} is live")


def check_callers(others: Collection[ReadFlow], release: FlowRelease) -> Iterator[GateCheck]:
    """List the live flows that call this one. They are not refused: they can be proved only after it is live."""
    callers = [one.file.flow for one in others if one.file is not None and release.flow in called_flows(one)]
    if callers:
        found = f"{', '.join(callers)} {'call' if len(callers) > 1 else 'calls'} it: prove and promote again after this"
        yield GateCheck("callers", True, found)


def check_triggers(others: Collection[ReadFlow], read: ReadFlow) -> list[GateCheck]:
    """Check that no other live flow of the tenant has the address of one of its webhooks."""
    own = _addresses(read.file)
    taken: list[GateCheck] = []
    for other in others:
        taken += [
            GateCheck("trigger", False, f"{address} already starts {other.file.flow}", "give one of them another name:")
            for address in sorted(own & _addresses(other.file))
            if other.file is not None
        ]
    return taken or [GateCheck("triggers", True, "no other live flow has them")]


def others_live(store: Store, tenant: str, read: ReadFlow) -> Operation[list[ReadFlow]]:
    """Return the files of the tenant's other live flows."""
    found = []
    for record in (yield from scan_all(store, LIVE_KIND)):
        _, owner, name = record.at.space.split("/", 2)
        live = read_live(record)
        if owner == tenant and read.file is not None and name != read.file.flow and not live.version:
            release = yield from release_of(store, tenant, name, release_name(live.number))
            found.append(read_flow(release.text))
    return found


def _triggers(file: FlowFile | None) -> Iterable[TriggerSpec]:
    return [] if file is None else [one for one in file.on if isinstance(one, TriggerSpec)]


def _addresses(file: FlowFile | None) -> set[str]:
    found = {
        f"/hooks/{one.name or one.webhook.replace('-', '_')}" for one in _triggers(file) if one.webhook is not None
    }
    return found | {f"the queue {one.queue}" for one in _triggers(file) if one.queue is not None}


def key_of(release: FlowRelease) -> str:
    """The key's template in one form, so that `.x` and `[x]` are the same."""
    if not release.text:
        return release.key
    file = read_flow(release.text).file
    return "" if file is None else key_template(file.key)


def check_key(before: FlowRelease | None, after: FlowRelease, remembered: str, new_key: str) -> GateCheck:
    """`remembered`: how many keys are remembered under the previous template; `new_key`: the reason for which it may
    change.
    """
    if before is None or key_of(before) == key_of(after):
        return GateCheck("key", True, "as it is live" if before is not None else key_of(after))
    found = f"the key changes from {key_of(before)} to {key_of(after)}: late duplicates of {remembered} are done again"
    return GateCheck("key", bool(new_key), found, "" if new_key else 'keep the key, or say why: --new-key "…"')


def check_second(before: FlowRelease | None, after: FlowRelease, by: str, agreed: Sequence[str]) -> Iterator[GateCheck]:
    """Where the file, or the release that is live, says `second: true`: one other than who promotes must have agreed.
    A content that takes the line out is still under the rule of what is live."""
    if not any(_needs_second(one) for one in (before, after)):
        return
    others = [name for name in agreed if name.casefold() != by.casefold()]
    found = f"{others[-1]} agreed" if others else f"no other person than {by} has agreed to this content"
    instead = "" if others else f"another person: twiceproof flows agree {after.flow}"
    yield GateCheck("second", bool(others), found, instead)


def _needs_second(release: FlowRelease | None) -> bool:
    file = read_flow(release.text).file if release is not None and release.text else None
    return file is not None and file.second


def functions_here(release: FlowRelease) -> dict[str, str]:
    """Return the digests of the functions that a file calls, as imported by this process."""
    return function_digests(read_flow(release.text)) if release.text else dict(release.functions)
