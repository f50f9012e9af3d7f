"""Questions to a stand-in: one connection for each process, and to each question its own answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from twiceproof.prove.child import in_child
from twiceproof.prove.worlds import stand_in
from twiceproof.prove.worlds.stand_in import ServiceProcess


class Echo:
    """Answers with the question."""

    async def talk(self, reader: Any, writer: Any) -> None: ...

    def command(self, word: str, value: Any) -> Any:
        return [word, value]


@pytest.fixture
def echo() -> Iterator[ServiceProcess]:
    with closing(ServiceProcess(Echo())) as service:
        yield service


def test_all_questions_of_a_process_go_over_one_connection(echo: ServiceProcess, monkeypatch) -> None:
    assert echo.ask("first", 1) == ["first", 1]
    monkeypatch.setattr(stand_in.QuestionLine, "_connected", None)
    assert echo.ask("second", "x" * 50_000 + "\n") == ["second", "x" * 50_000 + "\n"]


def test_a_forked_process_asks_over_a_connection_of_its_own(echo: ServiceProcess) -> None:
    assert echo.ask("before") == ["before", None]
    own = echo._line._link.getsockname()

    def ask_there() -> list[Any]:
        answer = echo.ask("there")
        return [answer, echo._line._link.getsockname() != own]

    assert in_child(ask_there, list[Any]) == [["there", None], True]
    assert echo.ask("after") == ["after", None]


def test_an_answer_that_nobody_waited_for_is_not_given_to_the_next_question(
    echo: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(link: Any) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stand_in, "_line_from", interrupted)
        echo.ask("first")
    assert echo.ask("second") == ["second", None]


def test_a_stand_in_that_has_ended_is_told(echo: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        def recv(self, size: int) -> bytes:
            return b""

    with pytest.raises(ConnectionResetError, match="has ended"):
        stand_in._line_from(Ended())  # type: ignore[arg-type]
