"""Server programs are started as they were found."""

from pathlib import Path

import pytest

from tests.servers.binaries import postgres_programs, valkey_programs

ONE_PROGRAM_TWO_NAMES = """#!/bin/sh
case "$0" in *redis-server) echo "Redis server v=7.0.15" ;; *) exit 1 ;; esac
"""


def test_a_redis_server_that_is_a_link_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian installs it so: under any other name it checks a dump and ends."""
    program = tmp_path / "redis-check-rdb"
    program.write_text(ONE_PROGRAM_TWO_NAMES)
    program.chmod(0o755)
    (tmp_path / "redis-server").symlink_to(program.name)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert next(valkey_programs()) == tmp_path / "redis-server"


def test_a_postgres_that_is_a_link_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, found = tmp_path / "multicall", tmp_path / "bin"
    program.write_text("#!/bin/sh\n")
    found.mkdir()
    for name in ("postgres", "initdb"):
        (found / name).symlink_to(program)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(found))
    monkeypatch.setattr("tests.servers.binaries.reachable_by_servers", lambda path: True)
    assert found in postgres_programs()
