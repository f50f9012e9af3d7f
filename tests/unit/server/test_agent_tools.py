"""`twiceproof mcp` spoken to by the package's own client, over standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, Misuse, NeedsReview, OutcomeUnknown
from twiceproof.errors import OwnRequest
from twiceproof.operations import block
from twiceproof.server.agent_tools import AgentTools
from twiceproof.server.tokens import Principal, Scope, create_token, hash_of, principal_of, revoke_token

pytest.importorskip("mcp", reason="the mcp package is not installed")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """One run in review, and one that waits for an approval."""
    with App(f"sqlite:///{tmp_path}/ledger.db") as app:

        @app.step
        def pay() -> None:
            raise OutcomeUnknown("no answer came")

        @app.flow(key="order:{number}")
        def order(number: int) -> None:
            if number == 2:
                app.approve("large", show={"total": 900}, requester="ann")
            pay()

        with pytest.raises(NeedsReview):
            order(1)
        order.start(2)
        app.worker().run(until_idle=True)
    return tmp_path


def token(ledger: Path, *scopes: Scope) -> list[str]:
    with App(f"sqlite:///{ledger}/ledger.db") as app:
        secret, _ = block(create_token(app.store, "agent", "default", scopes))
    file = ledger / "agent.token"
    file.write_text(secret)
    file.chmod(0o600)
    return ["--token", f"@{file}"]


def spoken(
    ledger: Path, *calls: tuple[str, dict[str, Any]], words: list[str] | None = None
) -> tuple[set[str], list[Any]]:
    """Start the server as an agent's program does. Returns its tools, and the answers to the calls."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    program = str(Path(sys.executable).with_name("twiceproof"))
    args = ["--store", f"sqlite:///{ledger}/ledger.db", "mcp", *(words or [])]

    async def talk() -> tuple[set[str], list[Any]]:
        started = StdioServerParameters(command=program, args=args)
        async with stdio_client(started) as (reads, writes), ClientSession(reads, writes) as session:
            await session.initialize()
            tools = {tool.name for tool in (await session.list_tools()).tools}
            return tools, [_answer(await session.call_tool(name, given)) for name, given in calls]

    return asyncio.run(talk())


def _answer(result: Any) -> Any:
    text = "".join(part.text for part in result.content)
    failed = getattr(result, "is_error", None) or getattr(result, "isError", False)
    return text if failed else json.loads(text)


READING = {"list_runs", "show_run", "list_reviews", "list_approvals", "list_acts", "lint_flow", "flow_schema"}
RUN = {"run": "order/order:1"}


def test_without_a_token_there_are_only_tools_that_read(ledger):
    tools, (runs, run, reviews, problems, refused) = spoken(
        ledger,
        ("list_runs", {}),
        ("show_run", RUN),
        ("list_reviews", {}),
        ("lint_flow", {"text": "flow: x\ninput: {id: text}\nkey: k:{id}\nsteps:\n  - done: =idd\n"}),
        ("settle_run", {**RUN, "verdict": "happened"}),
    )
    assert tools == READING
    assert {one["key"] for one in runs["runs"]} == {"order:1", "order:2"}
    assert run["next"] == ["settle_run(run='order/order:1', step='pay', verdict=…)"]
    assert [one["key"] for one in reviews["runs"]] == ["order:1"]
    assert [one["rule"] for one in problems["problems"] if one["level"] == "error"] == ["unknown-name"]
    assert "settle_run" in str(refused)  # there is no such tool


def test_a_token_brings_the_tools_of_its_scopes_and_every_act_is_recorded(ledger):
    with App(f"sqlite:///{ledger}/ledger.db") as app:
        (waiting,) = app.approvals()
    words = token(ledger, Scope.APPROVE)
    tools, (decided, again, acts) = spoken(
        ledger,
        ("decide_approval", {"approval": waiting.id, "approved": True}),
        ("decide_approval", {"approval": "nothing", "approved": True}),
        ("list_acts", {}),
        words=words,
    )
    assert tools == READING | {"settle_run", "decide_approval"} and decided["first"] is True
    assert decided["decision"]["by"] == "agent (mcp)"
    assert isinstance(again, str)
    assert [(one["verb"], one["by"]) for one in acts["acts"]] == [("decide", "agent (mcp)")]


def test_a_token_with_every_scope_settles_a_run(ledger):
    tools, (settled,) = spoken(ledger, ("settle_run", {**RUN, "verdict": "happened"}), words=token(ledger, Scope.ADMIN))
    assert tools == READING | {"settle_run", "retry_run", "cancel_run", "decide_approval"}
    assert isinstance(settled, dict), settled
    assert settled["next"] == ["show_run(run='order/order:1')"]
    with App(f"sqlite:///{ledger}/ledger.db") as app:
        (act,) = app.acts()
        assert (act.verb, act.by) == ("settle", "agent (mcp)")
        assert app.review() == []


@pytest.mark.parametrize("name", ["ann", "ANN"])
def test_who_asks_cannot_approve_by_a_program_either(ledger, name):
    """The acts of a program are recorded as "ann (mcp)"; the person behind them is ann."""
    with App(f"sqlite:///{ledger}/ledger.db") as app:
        (waiting,) = app.approvals()
        tools = AgentTools(app, Principal(name, frozenset({Scope.APPROVE}), "default"))
        with pytest.raises(OwnRequest, match="another person"):
            tools.decide_approval(waiting.id, approved=True)
        assert tools.decide_approval(waiting.id, approved=False)["decision"]["by"] == f"{name} (mcp)"


def test_a_token_that_was_revoked_acts_no_more_in_a_program_that_goes_on(ledger):
    with App(f"sqlite:///{ledger}/ledger.db") as app:
        secret, made = block(create_token(app.store, "agent", "default", [Scope.ADMIN]))
        tools = AgentTools(app, principal_of(made), hash_of(secret))
        block(revoke_token(app.store, made.id))
        (waiting,) = app.approvals()
        acts = (
            lambda: tools.settle_run("order/order:1", "happened", step="pay"),
            lambda: tools.retry_run("order/order:1"),
            lambda: tools.cancel_run("order/order:2"),
            lambda: tools.decide_approval(waiting.id, approved=True),
        )
        assert len(acts) == len(tools.acting())
        for act in acts:
            with pytest.raises(Misuse, match="revoked"):
                act()
        assert app.acts(by="agent (mcp)") == [] and len(app.review()) == len(app.approvals()) == 1
        assert tools.list_reviews()["runs"]
