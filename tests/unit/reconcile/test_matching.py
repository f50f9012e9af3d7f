"""The temporary file: for its owner alone, removed after a kill, without rows, and bounded by the disk."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from twiceproof import App, Misuse, NotDone
from twiceproof.reconcile.matching import Workspace, are_apart
from twiceproof.reconcile.readers import IterableRows
from twiceproof.reconcile.sources import KeyedSource, SourceOrigin

CANARY = "c4nary-iban"


def view(**options) -> KeyedSource:
    origin = SourceOrigin("rows", IterableRows([]), timeout=1.0, shrink=0.2, empty=False, rate=None)
    return KeyedSource(0, "rows", origin, **{"key": "{id}", "id": "{id}", **options})


def filled(directory: Path, count: int = 100, **options) -> Workspace:
    workspace, source = Workspace(directory, **{"sealed": False, **options}), view()
    for number in range(count):
        workspace.keep(source, source.row({"id": f"order-{number}", "iban": CANARY}))
    workspace.sort()
    return workspace


def own(directory: Path) -> Path:
    return directory / f"twiceproof-reconcile-{os.getuid()}"


def test_only_its_owner_can_read_it_and_it_is_removed_at_the_end(tmp_path):
    workspace = filled(tmp_path)
    (home,) = own(tmp_path).iterdir()
    assert stat.S_IMODE(own(tmp_path).stat().st_mode) == stat.S_IMODE(home.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()} == {0o600}
    workspace.close()
    assert list(own(tmp_path).iterdir()) == []


def test_what_is_not_its_own_is_left_alone(tmp_path):
    for name in ("run-mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    filled(tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == {"run-mine", "other", own(tmp_path).name}


def test_a_directory_of_others_is_refused(tmp_path):
    own(tmp_path).mkdir()
    own(tmp_path).chmod(0o777)
    with pytest.raises(Misuse, match="chmod 700"):
        Workspace(tmp_path, sealed=False)
    own(tmp_path).rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Misuse):
        Workspace(tmp_path, sealed=False)


@pytest.mark.parametrize("sealed", [False, True])
def test_no_content_of_rows_is_in_it_and_no_key_where_the_ledger_is_encrypted(tmp_path, sealed):
    workspace = filled(tmp_path, sealed=sealed)
    (home,) = own(tmp_path).iterdir()
    content = b"".join(path.read_bytes() for path in home.iterdir())
    workspace.close()
    assert CANARY.encode() not in content
    assert (b"order-17" in content) is not sealed


def test_what_a_killed_process_left_is_removed_by_the_next_and_a_living_one_is_not(tmp_path):
    script = (
        "import os, signal, sys; from pathlib import Path; from twiceproof.reconcile.matching import Workspace\n"
        "Workspace(Path(sys.argv[1]), sealed=False); os.kill(os.getpid(), signal.SIGKILL)"
    )
    living = filled(tmp_path)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -9 and len(list(own(tmp_path).iterdir())) == 2
    filled(tmp_path).close()
    assert len(list(own(tmp_path).iterdir())) == 1
    living.close()


def test_a_full_disk_ends_it_cleanly(tmp_path):
    with pytest.raises(NotDone, match="full"):
        filled(tmp_path, 50_000, most_pages=50)


def test_after_a_full_disk_nothing_was_done(shop, monkeypatch):
    shop.sell(app := shop.process(), range(1, 31))
    shop.invoice(7)
    shop.order(500)
    made = Workspace.__init__
    monkeypatch.setattr(
        Workspace, "__init__", lambda self, *args, **options: made(self, *args, **options, most_pages=2)
    )
    with pytest.raises(NotDone, match="make room"):
        shop.run(app)
    assert not shop.voided and app.findings() == [] and shop.made == 31


def test_an_encrypted_ledger_is_reconciled_as_any_other(tmp_path, monkeypatch):
    import base64

    monkeypatch.setenv("TWICEPROOF_KEYS", "k1:" + base64.b64encode(os.urandom(32)).decode())
    sealed = []
    made = Workspace.__init__

    def watched(self, *args, **options):
        sealed.append(options["sealed"])
        made(self, *args, **options)

    monkeypatch.setattr(Workspace, "__init__", watched)
    with App(f"sqlite:///{tmp_path}/ledger.db") as app:

        @app.reconcile(grace="0s", directory=tmp_path / "own")
        def people(find):
            rows = [{"id": number, "mail": f"{number % 30}@b.de", "age": number % 30} for number in range(31)]
            others = [{"mail": f"{number}@b.de", "age": number + (number == 3)} for number in range(1, 30)]
            left = find.source("people", rows, key="{mail}", id="{id}")
            right = find.source("others", others, key="{mail}")
            yield find.duplicates(left)
            yield find.missing(left, right)
            yield find.differ(left, right, fields=["age"], tolerance="0.5")

        report = app.reconcile_now("people")
    assert sealed == [True]
    assert [(one.check.partition(":")[0], one.key) for one in report.findings] == [
        ("duplicates", "0@b.de"),
        ("missing", "0@b.de"),
        ("differ", "3@b.de"),
    ]


def test_numbers_within_their_tolerance_are_not_apart():
    assert not are_apart('["10.00"]', '["10.01"]', '["0.01"]')
    assert are_apart('["10.00"]', '["10.02"]', '["0.01"]')
    assert are_apart('["a"]', '["b"]', '["0.01"]') and are_apart("[null]", '["1"]', '["2"]')
    assert are_apart('["1"]', '["2"]', "[null]") and not are_apart('["1"]', '["1"]', "[null]")
