"""Flows in Python as releases: the identity of their code, and the evidence that `twiceproof prove --record` keeps.

The code itself stays where its workers are: `accepts=` and old workers carry out the runs of earlier versions.
"""

from __future__ import annotations

import inspect
import socket
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ..declared.gate import GateCheck
from ..declared.releases import FlowProof, FlowRelease, TestProof, keep_proof, push_release, source_digest
from ..errors import Misuse
from ..flows.flow import Flow
from ..keys.canonical import canonical
from ..operations import block
from ..stores.base import Store
from ..version import __version__
from .load import load
from .prompts import login_name

if TYPE_CHECKING:
    from ..app.app import App
    from ..prove.report import ProofReport
    from ..prove.target import ProofTarget

__all__ = ["python_release", "record_evidence", "recorded"]


def recorded(
    store: Store, tenant: str, name: str, by: str, *, keep: bool = True
) -> tuple[FlowRelease, list[GateCheck]]:
    """Return the identity of the code of `module:flow`, and what `twiceproof check` says. `keep`: store it."""
    from ..prove.checklist import check_app
    from ..prove.target import app_of

    flow = getattr(load(name), "flow", None)
    if not isinstance(flow, Flow):
        raise Misuse(f"{name} is no flow; name a function under @app.flow, or the NAME of a flow in a file.")
    app = app_of(flow)
    release = python_release(app, flow, by)
    if keep:
        release, _ = block(push_release(store, tenant, release))
    findings = check_app(app)
    if not findings:
        return release, [GateCheck("check", True, "no findings")]
    one = findings[0]
    found = f"{one.rule}: {one.where}: {one.found}" + (f", and {len(findings) - 1} more" if len(findings) > 1 else "")
    return release, [GateCheck("check", False, found, f"twiceproof check {name.partition(':')[0]}:app")]


def python_release(app: App, flow: Flow, by: str = "") -> FlowRelease:
    """Return the identity of a flow's code: its declaration, its function and the steps of its app."""
    functions = {_named(flow.function): source_digest(flow.function)}
    functions |= {_named(step.function): source_digest(step.function) for step in app.steps}
    key = flow.claim_requests.maker.text
    said = {"flow": flow.name, "version": flow.version, "key": key, "functions": functions}
    content = sha256(canonical(said)).hexdigest()
    return FlowRelease(flow.name, content, functions=functions, version=flow.version, key=key, by=by)


def _named(function: Any) -> str:
    function = inspect.unwrap(function)
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"


def record_evidence(proved: ProofTarget, report: ProofReport, depth: int, worlds: Sequence[str]) -> None:
    """Keep a report as evidence, in the store of the app that was proved."""
    if not isinstance(proved.flow, Flow):
        raise Misuse(f"{proved.flow.name} is under @app.once, and has no releases; leave out --record.")
    app = proved.app
    release = python_release(app, proved.flow, login_name())
    result = TestProof(
        report.key, report.planned, len(report.verdicts), report.good, report.unobserved, _doubts(report)
    )
    proof = FlowProof(
        release.flow,
        app.settings.tenant,
        release.hash,
        release.tests,
        release.functions,
        __version__,
        depth,
        (result,),
        tuple(worlds),
        login_name(),
        socket.gethostname(),
    )
    block(push_release(app.store, app.settings.tenant, release))
    block(keep_proof(app.store, proof))


def _doubts(report: ProofReport) -> tuple[str, ...]:
    """Return what a report leaves open beside its verdicts."""
    clocks = [f"its key is made with {clock}(), which no scenario changes" for clock in report.clocks]
    return (*clocks, *(f"{asked} had no answer from its stand-in" for asked in report.unanswered))
