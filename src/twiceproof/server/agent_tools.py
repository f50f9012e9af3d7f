"""The tools of `twiceproof mcp`: what a program that speaks the Model Context Protocol may read, and do.

Tools that read are always there. Each tool that acts needs the scope that its route over HTTP needs, which only a token
gives; every act is recorded with the token's name, in the same write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ..app.app import App
from ..declared.lint import RULES, lint
from ..declared.model import schema
from ..declared.reading import read_flow
from ..errors import Misuse, TwiceproofError
from ..flows.engine.compensation import cancel
from ..flows.runtime import own_approval
from ..flows.waits.approvals import decide
from ..flows.waits.records import request_address
from ..operations import block
from .services.approvals import LONGEST_NOTE
from .tokens import Principal, Scope, find_token

__all__ = ["AgentTools", "mcp_server"]


MOST = 200  # entries of one answer
Word = Literal["happened", "did-not-happen", "retry", "undo", "abandon"]


class AgentTools:
    """The tools over one ledger, for one caller. `digest`: of its token, which is looked up before each act."""

    def __init__(self, app: App, caller: Principal, digest: str = "") -> None:
        self._app = app
        self._caller = caller
        self._digest = digest

    # -- reading ---------------------------------------------------------------------------------

    def list_runs(self, flow: str = "", state: str = "", limit: int = 20) -> Any:
        """List runs, the latest first. `state`: queued, held, waiting, review, done or failed."""
        runs = self._app.runs(flow=flow, state=state, limit=min(limit, MOST))
        moves = [f"show_run(run={run.run!r})" for run in runs[:3]]
        return _answer({"runs": runs}, moves)

    def show_run(self, run: str) -> Any:
        """Show a run with its steps. `run` is its id, or FLOW/KEY."""
        whole = self._app.history(run)
        unknown = [step.name for step in whole.steps if step.state in ("started", "unknown")]
        moves = [f"settle_run(run={run!r}, step={name!r}, verdict=…)" for name in unknown]
        return _answer({"run": whole}, moves)

    def list_reviews(self, flow: str = "", limit: int = 20) -> Any:
        """List the runs that wait for a decision, because an outcome is unknown."""
        runs = self._app.review(flow=flow, limit=min(limit, MOST))
        return _answer({"runs": runs}, [f"show_run(run={run.run!r})" for run in runs[:3]])

    def list_approvals(self, flow: str = "", limit: int = 20) -> Any:
        """List what waits for an approval, with what the person is shown."""
        found = self._app.approvals(flow=flow or None, limit=min(limit, MOST))
        moves = [f"decide_approval(approval={one.id!r}, approved=…)" for one in found[:3]]
        return _answer({"approvals": found}, moves)

    def list_acts(self, limit: int = 50) -> Any:
        """List what people and programs did by hand, the latest first."""
        return _answer({"acts": self._app.acts(limit=min(limit, MOST))}, [])

    def lint_flow(self, text: str) -> Any:
        """Check the text of a flow file. No step is run; modules whose functions it calls are imported. Every problem
        has its line, its column, and what to write."""
        problems = lint(read_flow(text), None)
        told = [
            {
                "line": one.place.line,
                "column": one.place.column,
                "level": one.level,
                "rule": one.rule,
                "found": one.found,
                "why": RULES.get(one.rule, ""),
                "instead": one.instead,
            }
            for one in problems
        ]
        bad = any(one.level == "error" for one in problems)
        return _answer({"problems": told}, ["lint_flow(text=…)" if bad else "twiceproof flows test FILE"])

    def flow_schema(self) -> Any:
        """Return the JSON Schema of flow files."""
        return schema()

    # -- acting ----------------------------------------------------------------------------------

    def settle_run(self, run: str, verdict: Word, step: str = "", result: Any = None, note: str = "") -> Any:
        """Record what happened to a step whose outcome is unknown. Look at the destination first: a wrong one does the
        work twice, or not at all. `result` is what the step returned, if it happened."""
        given = {"result": result} if verdict == "happened" else {}
        settled = self._app.settle_run(run, verdict, by=self._name, step=step, note=note, **given)
        return _answer({"settled": settled}, [f"show_run(run={run!r})"])

    def retry_run(self, run: str) -> Any:
        """Queue a run that failed. Steps that are done stay done."""
        return _answer({"run": self._app.retry_run(run, by=self._name), "state": "queued"}, [f"show_run(run={run!r})"])

    def cancel_run(self, run: str) -> Any:
        """Stop a run, and undo what it did."""
        app = self._app
        at = app._place(run)
        state = block(cancel(app.store, at, self._name, app.runtime.life_of(at)))
        return _answer({"run": run, "state": state}, [f"show_run(run={run!r})"])

    def decide_approval(self, approval: str, approved: bool, shown: str = "", note: str = "") -> Any:
        """Approve or reject. `shown` is the digest of what was looked at: another request is refused then."""
        app, name = self._app, self._caller.name
        own_approval(app.runtime.tenant, request_address(approval))
        decided = block(
            decide(
                app.store,
                approval,
                approved=bool(approved),
                by=self._name,
                note=note[:LONGEST_NOTE],
                shown=shown,
                mark=app.runtime.owner(),
                person=name,
            )
        )
        return _answer({"first": decided.first, "decision": decided.decision}, ["list_approvals()"])

    # -- who, and what was done ------------------------------------------------------------------

    @property
    def _name(self) -> str:
        """Who acts. This process may live for days: a token that was revoked or has expired since acts no more."""
        if self._digest and block(find_token(self._app.store, self._digest)) is None:
            raise Misuse("The token was revoked, or has expired; start twiceproof mcp with another one.")
        return f"{self._caller.name} (mcp)"

    def reading(self) -> list[Callable[..., Any]]:
        """The tools that only read."""
        return [
            self.list_runs,
            self.show_run,
            self.list_reviews,
            self.list_approvals,
            self.list_acts,
            self.lint_flow,
            self.flow_schema,
        ]

    def acting(self) -> list[Callable[..., Any]]:
        """The tools that act, of those that the caller's scopes allow."""
        offered: tuple[tuple[Scope, Callable[..., Any]], ...] = (
            (Scope.APPROVE, self.settle_run),
            (Scope.RUN, self.retry_run),
            (Scope.RUN, self.cancel_run),
            (Scope.APPROVE, self.decide_approval),
        )
        return [tool for scope, tool in offered if self._caller.may(scope)]


def _answer(shape: dict[str, Any], moves: list[str]) -> dict[str, Any]:
    """Plain JSON, with what can be done next."""
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({**shape, "next": moves}, enc_hook=str))
    return made


INSTRUCTIONS = """\
Twiceproof keeps a ledger of runs, so that work which is started twice happens once. A run in review has a step whose
outcome is unknown: look at the destination before you settle it, and never guess. Answers name what can be done next.
"""


def mcp_server(tools: AgentTools) -> Any:
    """Return the server of the `mcp` package, with the tools that this caller may use."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp_types import ToolAnnotations
    except ImportError:
        raise Misuse("twiceproof mcp needs the mcp package; install it with: pip install 'twiceproof[mcp]'") from None

    def told(tool: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(tool)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return tool(*args, **kwargs)
            except TwiceproofError as error:
                raise ToolError(f"{type(error).__name__}: {error}") from error

        return call

    server = MCPServer("twiceproof", instructions=INSTRUCTIONS)
    for tool in tools.reading():
        server.add_tool(told(tool), annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    for tool in tools.acting():
        server.add_tool(told(tool), annotations=ToolAnnotations(destructive_hint=True), structured_output=False)
    return server
