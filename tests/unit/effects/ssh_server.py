"""SSH servers on loopback for tests: the system's sshd where there is one, and asyncssh's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.servers.address import free_port

CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/client.pub
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
"""


class Keys:
    """A host key and a client key, made for one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("host", "client"):
            key = asyncssh.generate_private_key("ssh-ed25519")
            key.write_private_key(str(folder / name))
            key.write_public_key(str(folder / f"{name}.pub"))
            (folder / name).chmod(0o600)

    def options(self, port: int) -> dict[str, Any]:
        """What `ssh_start` needs to reach a server with these keys, and to know it again."""
        known = asyncssh.import_known_hosts(f"[127.0.0.1]:{port} {(self.folder / 'host.pub').read_text()}")
        return {
            "port": port,
            "username": _login(),
            "client_keys": [str(self.folder / "client")],
            "known_hosts": known,
            "config": None,
            "agent_path": None,
        }


def _login() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


@contextmanager
def system_sshd(keys: Keys) -> Iterator[int]:
    """OpenSSH's server, as whoever runs the tests."""
    binary = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if binary is None:
        pytest.skip("there is no sshd on this machine; asyncssh's own server stands in for it")
    port = free_port()
    config = keys.folder / "sshd_config"
    config.write_text(CONFIG.format(port=port, folder=keys.folder))
    log = keys.folder / "sshd.log"
    server = subprocess.Popen([binary, "-D", "-f", str(config), "-E", str(log)], stdin=subprocess.DEVNULL)
    try:
        if not _answers(port, server):
            pytest.skip(f"sshd does not start here: {log.read_text() if log.exists() else ''}"[:500])
        yield port
    finally:
        server.terminate()
        server.wait(10)


def _answers(port: int, server: subprocess.Popen[bytes]) -> bool:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        try:
            server.wait(0.05)
            return False
        except subprocess.TimeoutExpired:
            continue
    return False


@contextmanager
def asyncssh_server(keys: Keys, handle: Any = None) -> Iterator[int]:
    """asyncssh's own server on a thread of its own. It runs what it is told with `sh`, as sshd would."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def listen() -> Any:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[str(keys.folder / "host")],
            authorized_client_keys=str(keys.folder / "client.pub"),
            process_factory=handle or _obey,
        )

    async def stop(server: Any) -> None:
        server.close()
        await server.wait_closed()

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(stop(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _obey(process: Any) -> None:
    given = await process.stdin.read()
    done = await asyncio.to_thread(
        subprocess.run, ["sh", "-c", process.command], input=given.encode(), capture_output=True, check=False
    )
    process.stdout.write(done.stdout.decode())
    process.stderr.write(done.stderr.decode())
    process.exit(done.returncode)
