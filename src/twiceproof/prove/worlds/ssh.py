"""A recording stand-in for `ssh_start`: what was started where, and starts whose answer is lost."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from ...effects import ssh
from .stand_in import ServiceProcess

__all__ = ["SshService", "SshWorld", "never_started"]


LONGEST = 200  # characters of a command that are shown

_open: list[SshWorld] = []


def never_started() -> bool:
    """Whether starts are observed, and there was none: then no job is there that could call back."""
    return bool(_open) and not any(world.look() for world in _open)


class SshService:
    """Keeps everything in memory, for the current scenario."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._started: list[str] = []
        self._losing = 0

    async def talk(self, reader: Any, writer: Any) -> None:
        """Never called: starts arrive in the same way as the prover's questions."""

    def command(self, word: str, value: Any) -> Any:
        match word:
            case "start":
                self._started.append(value)
                return len(self._started) != self._losing
            case "look":
                return dict(Counter(self._started))
            case "exchanges":
                return self._started
            case "lose":
                self._losing = int(value)
            case _:
                self._clear()
        return None


class SshWorld:
    """`with SshWorld() as world:` records every command that `ssh_start` would start, on any host, and starts none.

    Commands are counted by host and words. Each start counts: a command that is started twice is done twice.

        with SshWorld() as world:
            prove(flow, order, world=world, callbacks={"finished": {"ok": True}})
    """

    def __init__(self) -> None:
        self._service = ServiceProcess(SshService())
        self._before: Callable[..., Any] = ssh.start_command
        setattr(ssh, "start_command", self._start)  # noqa: B010 - for type checkers
        _open.append(self)

    async def _start(self, host: str, script: str, *given: Any) -> None:
        if not self._service.ask("start", f"ssh {host}: {_command_of(script)}"[:LONGEST]):
            raise ConnectionError("the answer was lost (by the play); it may have been started")

    def reset(self) -> None:
        self._service.ask("reset")

    def look(self) -> dict[str, int]:
        return msgspec.convert(self._service.ask("look"), dict[str, int])

    def exchanges(self) -> list[str]:
        """Starts of the last scenario, in order."""
        return msgspec.convert(self._service.ask("exchanges"), list[str])

    def lose(self, number: int) -> None:
        """Lose the answer to the n-th start of the next scenario, after it was carried out."""
        self._service.ask("lose", number)

    def close(self) -> None:
        setattr(ssh, "start_command", self._before)  # noqa: B010
        _open.remove(self)
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _command_of(script: str) -> str:
    """The words that were given, out of the script around them."""
    inner = shlex.split(script)[-1]
    start = "nohup " if "nohup " in inner else "exec "
    return inner.rpartition(start)[2].partition(" </dev/null")[0]
