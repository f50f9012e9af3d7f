"""What strace writes down, read as acts on files."""

from __future__ import annotations

from tests.faults.catalogue.power_tape import Op, read_tape


def test_each_call_is_one_act():
    lines = [
        '7 openat(AT_FDCWD</w>, "\\x2f\\x64", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 3</d/file>',
        '7 pwrite64(3</d/file>, "\\x61\\x62\\x63", 3, 4096) = 3',
        '7 write(4</acks>, "\\x61\\x0a", 2)      = 2',
        "7 ftruncate(3</d/file>, 12)            = 0",
        "7 fdatasync(3</d/file>)                = 0",
        '7 unlink("\\x2f\\x64\\x2f\\x66") = 0',
        '7 rename("\\x2f\\x61", "\\x2f\\x62") = 0',
        '7 link("\\x2f\\x61", "\\x2f\\x62") = 0',
    ]
    assert list(read_tape(lines)) == [
        Op("create", "/d/file"),
        Op("write", "/d/file", 4096, b"abc"),
        Op("write", "/acks", -1, b"a\n"),
        Op("truncate", "/d/file", 12),
        Op("sync", "/d/file"),
        Op("remove", "/d/f"),
        Op("rename", "/a", data=b"/b"),
        Op("link", "/a", data=b"/b"),
    ]


def test_what_failed_or_only_read_is_no_act():
    lines = [
        '7 openat(AT_FDCWD</w>, "\\x2f\\x64", O_RDONLY|O_CLOEXEC) = 3</d>',
        "7 fdatasync(3</d/file>) = -1 EIO (Input/output error)",
        '7 unlink("\\x2f\\x64") = -1 ENOENT (No such file or directory)',
    ]
    assert list(read_tape(lines)) == []


def test_a_short_write_wrote_only_what_it_says():
    assert list(read_tape(['7 pwrite64(3</f>, "\\x61\\x62\\x63", 3, 0) = 2'])) == [Op("write", "/f", 0, b"ab")]


def test_a_call_that_was_interrupted_by_another_thread_counts_when_it_returns():
    lines = [
        "7 fdatasync(3</d/file> <unfinished ...>",
        '8 write(4</acks>, "\\x61", 1) = 1',
        "7 <... fdatasync resumed>) = 0",
    ]
    assert [op.kind for op in read_tape(lines)] == ["write", "sync"]
