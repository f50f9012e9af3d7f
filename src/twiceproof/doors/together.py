"""Operations that need not wait for each other: their writes meet in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..drive import Operation, Request, await_, block

__all__ = ["Together"]

R = TypeVar("R")


class Together(Request[list[R]]):
    """Side by side for an awaiting caller, in turn for a blocking one."""

    __slots__ = ("_operations",)

    def __init__(self, operations: Sequence[Operation[R]]) -> None:
        self._operations = operations

    def block(self) -> list[R]:
        return [block(operation) for operation in self._operations]

    async def wait(self) -> list[R]:
        if len(self._operations) == 1:  # nearly always
            return [await await_(self._operations[0])]
        import asyncio  # whoever awaits has it; a blocking program need not load it

        return list(await asyncio.gather(*map(await_, self._operations)))
