"""The disk of F10: what is synced stays, and nothing else is promised."""

from __future__ import annotations

import random

from tests.faults.catalogue.power_disk import SECTOR, Disk, torn
from tests.faults.catalogue.power_tape import Op

FILE = "/d/file"


def disk(*ops):
    made = Disk("/d")
    for op in (Op("create", FILE), Op("sync", "/d"), *ops):
        made.do(op)
    return made


def cuts(made, times=200):
    return [made.cut(random.Random(number)) for number in range(times)]


def test_what_is_synced_is_always_there():
    made = disk(Op("write", FILE, 0, b"abc"), Op("sync", FILE))
    assert {left["file"] for left in cuts(made)} == {b"abc"}


def test_what_is_not_synced_may_be_there_or_not():
    made = disk(Op("write", FILE, 0, b"abc"), Op("sync", FILE), Op("write", FILE, 1, b"X"))
    assert {left["file"] for left in cuts(made)} == {b"abc", b"aXc"}


def test_of_two_writes_the_later_one_may_be_there_alone():
    made = disk(Op("write", FILE, 0, b"ab"), Op("write", FILE, 2, b"cd"))
    assert {left["file"] for left in cuts(made)} == {b"", b"ab", b"abcd", b"\0\0cd"}


def test_a_write_is_torn_at_sectors_of_the_disk():
    op = Op("write", FILE, 100, bytes(range(256)) * 16)
    for number in range(100):
        part = torn(op, random.Random(number))
        edge = part.offset + len(part.data) if part.offset == 100 else part.offset
        assert 0 < len(part.data) < len(op.data)
        assert edge % SECTOR == 0
        assert part.data == op.data[part.offset - 100 :][: len(part.data)]


def test_a_name_lasts_once_its_directory_is_synced():
    made = Disk("/d")
    made.do(Op("create", FILE))
    assert {tuple(left) for left in cuts(made)} == {(), ("file",)}
    made.do(Op("sync", "/d"))
    assert {tuple(left) for left in cuts(made)} == {("file",)}
    made.do(Op("remove", FILE))
    assert {tuple(left) for left in cuts(made)} == {(), ("file",)}


def test_a_file_that_was_removed_and_made_anew_has_nothing_of_the_old_one():
    made = disk(Op("write", FILE, 0, b"old"), Op("sync", FILE), Op("remove", FILE), Op("create", FILE))
    assert {left.get("file") for left in cuts(made)} == {b"old", None, b""}


def test_a_truncation_is_lost_like_a_write():
    made = disk(Op("write", FILE, 0, b"abc"), Op("sync", FILE), Op("truncate", FILE, 1))
    assert {left["file"] for left in cuts(made)} == {b"abc", b"a"}
