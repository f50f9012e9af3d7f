"""What the doctor finds in a SQLite file, each finding with its twin."""

import os
import shutil
import sqlite3
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from twiceproof.clock import Clock
from twiceproof.errors import StoreUnsafe
from twiceproof.prove.clocks import ManualClock
from twiceproof.records import Address, Insert
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.sqlite import doctor as sqlite_doctor
from twiceproof.stores.sqlite.doctor import examine, mount_kind
from twiceproof.stores.sqlite.engine import SqliteEngine

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "twiceproof.db"


def findings(path, clock=None, **options):
    clock = clock or Clock()
    engine = SqliteEngine(path, clock=clock, **options)
    found = {finding.name: finding for finding in engine.examine()}
    engine.close()
    return found


def level(path, name, **options):
    return findings(path, **options)[name].level


def test_all_that_is_not_ok_comes_with_a_next_move(path, monkeypatch):
    monkeypatch.setattr(sqlite_doctor, "mount_kind", lambda path: "overlay")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 1))
    path.touch(0o644)
    for finding in findings(path, durability="process").values():
        assert finding.advice or finding.level == "ok"


# -- file systems --------------------------------------------------------------------------------


@pytest.fixture
def mounts(tmp_path):
    file = tmp_path / "mounts"
    file.write_text(
        "/dev/sda1 / ext4 rw 0 0\n"
        "server:/export /srv/shared nfs4 rw 0 0\n"
        "tmpfs /srv/shared/local tmpfs rw 0 0\n"
        "//nas/x /mnt/my\\040share cifs rw 0 0\n"
        "host /mnt/late ext4 rw 0 0\n"
        "host /mnt/late fuse.sshfs rw 0 0\n"
    )
    return file


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/twiceproof.db", "ext4"),
        ("/srv/shared/twiceproof.db", "nfs4"),
        ("/srv/shared-not/twiceproof.db", "ext4"),
        ("/srv/shared/local/twiceproof.db", "tmpfs"),
        ("/mnt/my share/twiceproof.db", "cifs"),
        ("/mnt/late/twiceproof.db", "fuse.sshfs"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_and_latest_mount(mounts, path, kind):
    assert mount_kind(Path(path), mounts) == kind


def test_a_link_is_followed_to_where_the_file_lies(mounts, tmp_path):
    (tmp_path / "link").symlink_to("/srv/shared")
    assert mount_kind(tmp_path / "link" / "twiceproof.db", mounts) == "nfs4"


def test_without_a_list_of_mounts_the_kind_is_unknown(tmp_path):
    assert mount_kind(tmp_path, tmp_path / "no such file") == "unknown"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuseblk", "9p", "ceph", "afs"])
def test_a_network_file_system_is_refused_and_no_file_is_left(path, monkeypatch, kind):
    monkeypatch.setattr(sqlite_doctor, "mount_kind", lambda path: kind)
    with pytest.raises(StoreUnsafe, match="local disk") as caught:
        SqliteEngine(path)
    assert caught.value.findings[0].level == "refuse"
    assert not path.exists()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("ext4", "ok"), ("xfs", "ok"), ("btrfs", "ok"), ("unknown", "ok"), ("overlay", "warn"), ("tmpfs", "warn")],
)
def test_a_local_file_system_is_taken(path, monkeypatch, kind, expected):
    monkeypatch.setattr(sqlite_doctor, "mount_kind", lambda path: kind)
    assert level(path, "file system") == expected


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "expected"), [("power", "ok"), ("process", "warn")])
def test_syncing_below_full_is_warned_of(path, durability, expected):
    assert level(path, "synchronous", durability=durability) == expected


@pytest.mark.parametrize(
    ("mode", "expected"), [("wal", "ok"), ("delete", "warn"), ("memory", "refuse"), ("off", "refuse")]
)
def test_a_journal_that_loses_writes_is_refused(path, mode, expected):
    SqliteEngine(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA journal_mode={mode}")
    (finding,) = [finding for finding in examine(db, path, Clock()) if finding.name == "journal_mode"]
    db.close()
    assert finding.level == expected


@pytest.mark.parametrize(("version", "expected"), [((3, 34, 1), "warn"), ((3, 35, 0), "ok")])
def test_an_old_sqlite_is_warned_of(path, monkeypatch, version, expected):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    assert level(path, "SQLite version") == expected


def test_fences_that_follow_the_clock_are_said_to_be_safe_after_a_restore(path):
    found = findings(path)["fences"]
    assert found.level == "ok" and "copied back draws none again" in found.found


def test_fences_that_are_ahead_of_the_clock_are_warned_of(path):
    clock = ManualClock()
    SqliteEngine(path, clock=clock).close()
    clock.advance(-7200)
    found = findings(path, clock=clock)["fences"]
    assert found.level == "warn" and "120 minutes ahead" in found.found


# -- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "expected"), [(0o600, "ok"), (0o400, "ok"), (0o640, "warn"), (0o604, "warn")])
def test_a_file_that_others_can_read_is_warned_of(path, mode, expected):
    SqliteEngine(path).close()
    if mode == 0o400 and os.getuid() != 0:
        mode = 0o600
    path.chmod(mode)
    assert level(path, "permissions") == expected


@pytest.mark.parametrize(("free", "expected"), [(1024**3, "ok"), (1024**3 - 1, "warn")])
def test_little_room_is_warned_of(path, monkeypatch, free, expected):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, free))
    assert level(path, "free space") == expected


@pytest.mark.parametrize(("size", "expected"), [(100 * 1024**2, "ok"), (100 * 1024**2 + 1, "warn")])
def test_a_log_that_grew_is_warned_of(path, size, expected):
    with path.with_name(path.name + "-wal").open("wb") as log:
        log.truncate(size)  # a hole: no room is taken
    assert sqlite_doctor._log_size(path).level == expected


def test_a_damaged_file_is_refused_and_a_whole_one_is_not(path):
    store = GroupedStore(SqliteEngine(path))
    for nth in range(200):
        store.write(Insert(Address("shop", "claim", str(nth)), "x" * 500)).block()
    store.close()
    assert level(path, "integrity") == "ok"
    content = bytearray(path.read_bytes())
    content[8_192 : len(content) : 64] = b"\xff" * len(content[8_192 : len(content) : 64])
    path.write_bytes(content)
    db = sqlite3.connect(path)
    (finding,) = [sqlite_doctor._integrity(db)]
    db.close()
    assert finding.level == "refuse"


def empty_an_index(path):
    """A page that a disk gave back wrong: well-formed, and empty, so that no row is found by it."""
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = db.execute("PRAGMA page_size").fetchone()
        (root,) = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE type='index' AND tbl_name='twiceproof_records' ORDER BY rowid"
        ).fetchone()
    db.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(bytes([10, 0, 0, 0, 0]) + (size % 65_536).to_bytes(2, "big") + b"\0")


def test_an_index_that_has_lost_its_rows_is_refused(path):
    """A claim that the index does not find is won a second time."""
    store = GroupedStore(SqliteEngine(path))
    store.write(Insert(Address("shop", "claim", "1"), "{}")).block()
    store.close()
    assert level(path, "integrity") == "ok"
    empty_an_index(path)
    found = findings(path)["integrity"]
    assert (found.level, "index" in found.found) == ("refuse", True)


@pytest.mark.parametrize("name", ["shop.db", "my shop's $(x).db"])
def test_the_advice_about_rights_can_be_pasted_anywhere(tmp_path, name):
    path = tmp_path / name
    SqliteEngine(path).close()
    path.chmod(0o644)
    advice = findings(path)["permissions"].advice
    subprocess.run(["bash", "-c", advice], cwd="/", check=True)
    assert level(path, "permissions") == "ok"


# -- hosts ---------------------------------------------------------------------------------------


def note_other_host(path, when):
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO twiceproof_facts VALUES ('host:another', ?)", (repr(when),))
    db.close()


@pytest.mark.parametrize(("ago", "expected"), [(10, "refuse"), (599, "refuse"), (601, "warn"), (86_400, "warn")])
def test_a_second_machine_on_the_file_is_noticed(path, ago, expected):
    clock = ManualClock()
    SqliteEngine(path, clock=clock).close()
    note_other_host(path, clock.now() - ago)
    assert level(path, "hosts", clock=clock) == expected


def test_one_machine_alone_is_no_finding(path):
    SqliteEngine(path).close()
    assert "hosts" not in findings(path)
