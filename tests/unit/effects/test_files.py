"""Files written as a whole, created once and extended by whole lines: killed at every system call, and power cuts."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.faults.catalogue.killing.strace import Traced, counted, why_not
from tests.faults.catalogue.power_disk import Disk
from tests.faults.catalogue.power_tape import CALLS, ROOT, Op, read_tape
from twiceproof import Absent, Happened, Misuse, NotDone, Unknown
from twiceproof.effects import files
from twiceproof.effects.base import Effect

KEY, OTHER = "tp_" + "a1" * 16, "tp_" + "b2" * 16
OLD, NEW = b"old " * 700, b"new and longer " * 700
EFFECTS: dict[str, Callable[[Path], Effect[Any]]] = {
    "write": lambda path: files.write(path, NEW),
    "create": lambda path: files.create(path, NEW),
    "append": lambda path: files.append(path, "{effect_key} " + "x" * 2_000),
}
BEFORE: dict[str, bytes | None] = {"write": OLD, "create": None, "append": b"line\n"}


def after(verb: str) -> bytes:
    return NEW if verb != "append" else f"line\n{KEY} {'x' * 2_000}\n".encode()


def prepared(folder: Path, verb: str) -> Path:
    path = folder / "file"
    before = BEFORE[verb]
    if before is not None:
        path.write_bytes(before)
    return path


# -- whole files -------------------------------------------------------------------------------------


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("old")
    path.chmod(0o600)
    written = files.write(path, "new").perform(KEY)
    assert (path.read_text(), written.size, stat.S_IMODE(path.stat().st_mode)) == ("new", 3, 0o600)
    files.write(tmp_path / "fresh", b"x").perform(KEY)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o644
    assert sorted(one.name for one in tmp_path.iterdir()) == ["fresh", "report"]


def test_a_symbolic_link_stays_one_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    files.write(tmp_path / "link", "new").perform(KEY)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


def test_of_fifty_creators_one_wins_and_its_file_is_whole(tmp_path: Path) -> None:
    def create(number: int) -> bool:
        try:
            files.create(tmp_path / "ticket", f"{number} " * 5_000).perform(KEY)
        except NotDone as error:
            assert error.data["final"] is True
            return False
        return True

    with ThreadPoolExecutor(50) as pool:
        won = list(pool.map(create, range(50)))
    assert sum(won) == 1
    assert (tmp_path / "ticket").read_text() == f"{won.index(True)} " * 5_000
    assert [one.name for one in tmp_path.iterdir()] == ["ticket"]


def test_a_file_with_our_contents_is_ours_and_another_one_is_not(tmp_path: Path) -> None:
    effect = files.create(tmp_path / "ticket", "mine")
    assert effect.perform(KEY) == effect.perform(KEY)
    assert isinstance(files.create(tmp_path / "ticket", "yours").look(OTHER), Unknown)
    with pytest.raises(NotDone, match="other contents"):
        files.create(tmp_path / "ticket", "yours").perform(OTHER)
    assert (tmp_path / "ticket").read_text() == "mine"


def test_a_file_system_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(NotDone, match="no hard links"):
        files.create(tmp_path / "ticket", "mine").perform(KEY)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_tells_nothing_and_is_written_to_never(tmp_path: Path) -> None:
    effect = files.write(tmp_path / "not mounted" / "file", "x")
    assert isinstance(effect.look(KEY), Unknown)
    with pytest.raises(NotDone, match="nothing was changed"):
        effect.perform(KEY)


def test_names_and_contents_that_cannot_be_written_are_refused() -> None:
    for wrong in (lambda: files.write("", "x"), lambda: files.write("a\0b", "x"), lambda: files.write("a", 7)):
        with pytest.raises(Misuse):
            wrong()  # type: ignore[no-untyped-call]


# -- records -----------------------------------------------------------------------------------------


def test_a_record_of_either_form_carries_the_key(tmp_path: Path) -> None:
    path = tmp_path / "log"
    files.append(path, {"order": 17}).perform(KEY)
    files.append(path, "{effect_key};order 18").perform(OTHER)
    assert path.read_text() == f'{{"order":17,"effect_key":"{KEY}"}}\n{OTHER};order 18\n'


def test_records_of_fifty_writers_are_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    keys = [f"tp_{number:032x}" for number in range(50)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(files.append(path, "{effect_key} " + "x" * 3_000).perform, keys * 2))
    assert sorted(path.read_text().splitlines()) == [f"{key} {'x' * 3_000}" for key in keys]


def test_a_line_that_its_writer_did_not_finish_is_no_part_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log"
    effect = files.append(path, "{effect_key} paid")
    path.write_text(f"{KEY} pa")  # the beginning of it, left by a full disk
    assert effect.look(KEY) == Absent()
    effect.perform(KEY)
    assert path.read_text() == f"{KEY} pa\n{KEY} paid\n"


def test_a_record_that_does_not_fit_on_the_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "log", os.write
    path.write_text("line\n")
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:10]))
    with pytest.raises(NotDone, match="no room"):
        files.append(path, "{effect_key} paid").perform(KEY)
    assert path.read_text() == "line\n"


def test_only_the_tail_of_a_long_file_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "log"
    effect = files.append(path, "{effect_key} paid", tail=1_000)
    effect.perform(KEY)
    assert isinstance(effect.look(KEY), Happened) and effect.look(OTHER) == Absent()
    with path.open("a") as more:
        more.write("x" * 2_000 + "\n")
    assert isinstance(effect.look(KEY), Unknown)


def test_a_line_is_found_across_the_pieces_in_which_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PIECE", 7)
    path = tmp_path / "log"
    effect = files.append(path, "{effect_key} paid")
    path.write_text(f"first\n{KEY} paid\nlast\n")
    assert isinstance(effect.look(KEY), Happened) and effect.look(OTHER) == Absent()


def test_a_record_without_a_place_for_the_key_is_refused() -> None:
    for wrong in ("order 17", "{effect_key}\norder 17", {"effect_key": "mine"}):
        with pytest.raises(Misuse):
            files.append("log", wrong)


# -- crashes -----------------------------------------------------------------------------------------

SYSCALLS = "openat,write,fsync,rename,link,unlink,fchmod,pread64,ftruncate"


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "strace")
@pytest.mark.parametrize("verb", EFFECTS)
def test_killed_at_any_system_call_it_is_whole_or_not_there_and_can_be_repeated(verb: str, tmp_path: Path) -> None:
    clean = EFFECTS[verb](prepared(_folder(tmp_path, "clean"), verb))
    made = counted(lambda: clean.perform(KEY), SYSCALLS, tmp_path)
    points = [(call, nth) for call, times in made.items() for nth in range(1, times + 1)]
    assert len(points) >= 6
    seen = set()
    for call, nth in points:
        path = prepared(_folder(tmp_path, f"{call}-{nth}"), verb)
        effect = EFFECTS[verb](path)
        inject = f"inject={call}:signal=SIGKILL:when={nth}"
        assert Traced(lambda effect=effect: effect.perform(KEY), f"trace={call}", inject).end() == -signal.SIGKILL
        found = path.read_bytes() if path.exists() else None
        assert found in (BEFORE[verb], after(verb)), (call, nth)
        seen.add(found == after(verb))
        if not isinstance(effect.look(KEY), Happened):
            effect.perform(KEY)
        assert path.read_bytes() == after(verb)
    assert seen == {False, True}  # kills came before and after it happened


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


WORK = """
import sys
from pathlib import Path
from tests.unit.effects.test_files import EFFECTS, KEY
EFFECTS[sys.argv[1]](Path(sys.argv[2])).perform(KEY)
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "strace")
@pytest.mark.parametrize("verb", EFFECTS)
def test_after_a_power_cut_it_is_whole_or_not_there(verb: str, tmp_path: Path) -> None:
    acts = _recorded(verb, tmp_path)
    outcomes = set()
    for cut_after in range(len(acts) + 1):
        for seed in range(60):
            found = _left_after(acts[:cut_after], verb, str(tmp_path / "disk"), random.Random(seed))
            whole = found == after(verb)
            assert whole or _is_old(found, verb), (cut_after, seed, found)
            assert whole or cut_after < len(acts)  # what was confirmed is kept
            outcomes.add(whole)
    assert outcomes == {False, True}


def _is_old(found: bytes | None, verb: str) -> bool:
    if verb == "append":  # a torn line has no end, or not our whole record, and does not count
        return found is not None and found.startswith(b"line\n") and after(verb)[5:] not in found
    return found == BEFORE[verb]


def _recorded(verb: str, folder: Path) -> list[Op]:
    path = prepared(_folder(folder, "disk"), verb)
    strace = ["strace", "-f", "-qq", "-y", "-xx", "-s", "999999", "-e", f"trace={CALLS}", "-o", str(folder / "tape")]
    work = [sys.executable, "-c", WORK, verb, str(path)]
    subprocess.run([*strace, *work], cwd=ROOT, check=True, timeout=120)
    with (folder / "tape").open() as tape:
        acts = [op for op in read_tape(tape) if Path(op.path).is_relative_to(folder / "disk")]
    start = len(BEFORE["append"] or b"") if verb == "append" else 0
    return [structs.replace(op, offset=start) if op.kind == "write" else op for op in acts]  # each is one write


def _left_after(acts: list[Op], verb: str, folder: str, dice: random.Random) -> bytes | None:
    disk = Disk(folder)
    before = BEFORE[verb]
    if before is not None:
        for op in (
            Op("create", f"{folder}/file"),
            Op("write", f"{folder}/file", 0, before),
            Op("sync", f"{folder}/file"),
            Op("sync", folder),
        ):
            disk.do(op)
    for op in acts:
        disk.do(op)
    return disk.cut(dice).get("file")
