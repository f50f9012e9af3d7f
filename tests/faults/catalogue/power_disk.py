"""A disk that keeps what was synced; other writes may be lost, out of order, or torn at sectors."""

from __future__ import annotations

import random
from pathlib import PurePath

from tests.faults.catalogue.power_tape import Op

__all__ = ["SECTOR", "Disk"]

SECTOR = 512


class Inode:
    """A file's contents: what is on disk, and what is not synced yet."""

    def __init__(self) -> None:
        self.platter = bytearray()
        self.pending: list[Op] = []

    def sync(self) -> None:
        for op in self.pending:
            apply(self.platter, op)
        self.pending.clear()


class Disk:
    """One directory. Names can be lost like contents until the directory is synced."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.names: dict[str, Inode] = {}
        self.kept_names: dict[str, Inode] = {}
        self.pending: list[dict[str, Inode | None]] = []  # names, and the files that they stand for from then on

    def do(self, op: Op) -> None:
        name = PurePath(op.path).name
        if op.kind == "sync" and op.path == self.directory:
            self._sync_names()
        elif PurePath(op.path).parent != PurePath(self.directory):
            return
        elif op.kind == "create":
            if name not in self.names:
                self._name({name: Inode()})
        elif op.kind == "remove":
            if name in self.names:
                self._name({name: None})
        elif op.kind in ("rename", "link"):
            other = PurePath(op.data.decode()).name
            self._name({other: self.names[name]} | ({name: None} if op.kind == "rename" else {}))
        elif name in self.names:  # writes to a file without a name do not matter any more
            self._change(self.names[name], op)

    def _change(self, inode: Inode, op: Op) -> None:
        if op.kind == "sync":
            inode.sync()
        else:
            inode.pending.append(op)

    def _name(self, changes: dict[str, Inode | None]) -> None:
        self.pending.append(changes)
        _rename(self.names, changes)

    def _sync_names(self) -> None:
        self.kept_names = dict(self.names)
        self.pending.clear()

    # -- the power goes --------------------------------------------------------------------------

    def cut(self, dice: random.Random) -> dict[str, bytes]:
        """Return what is found when the power is back. Changes nothing: the same moment can be cut in many ways."""
        names = dict(self.kept_names)
        for changes in self.pending[: dice.randint(0, len(self.pending))]:  # a file system keeps these in order
            _rename(names, changes)
        keep = dice.choice([0.0, 0.5, 0.9, 1.0])
        return {name: self._left(inode, dice, keep) for name, inode in names.items()}

    def _left(self, inode: Inode, dice: random.Random, keep: float) -> bytes:
        found = bytearray(inode.platter)
        survivors = [op for op in inode.pending if dice.random() < keep]
        if survivors and dice.random() < 0.3:
            dice.shuffle(survivors)
        for op in survivors:
            apply(found, torn(op, dice) if dice.random() < 0.2 else op)
        return bytes(found)


def _rename(names: dict[str, Inode], changes: dict[str, Inode | None]) -> None:
    for name, inode in changes.items():
        names.pop(name, None)
        if inode is not None:
            names[name] = inode


def torn(op: Op, dice: random.Random) -> Op:
    """Return only the first sectors of a write, or only the last ones."""
    if op.kind != "write" or len(op.data) <= SECTOR:
        return op
    at = SECTOR * dice.randint(1, (len(op.data) - 1) // SECTOR) - op.offset % SECTOR
    if dice.random() < 0.5:
        return Op("write", op.path, op.offset, op.data[:at])
    return Op("write", op.path, op.offset + at, op.data[at:])


def apply(contents: bytearray, op: Op) -> None:
    if op.kind == "truncate":
        del contents[op.offset :]
        contents.extend(bytes(op.offset - len(contents)))
        return
    at = len(contents) if op.offset < 0 else op.offset
    contents.extend(bytes(max(0, at - len(contents))))
    contents[at : at + len(op.data)] = op.data
