"""The account that servers run under: our own, or `nobody` when we are root (PostgreSQL refuses root)."""

import os
import pwd
from pathlib import Path
from typing import TypedDict


class Account(TypedDict, total=False):
    """Keyword arguments for `subprocess.Popen`; empty when we are not root."""

    user: int
    group: int
    extra_groups: list[int]


def server_account() -> Account:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def give(path: Path) -> None:
    """Hand one directory or file to the servers' account."""
    account = server_account()
    if account:
        os.chown(path, account["user"], account["group"])


def reachable_by_servers(path: Path) -> bool:
    """Whether the servers' account may walk to `path`; a virtualenv under a 0700 home is out of reach."""
    if not server_account():
        return os.access(path, os.X_OK)
    return all(step.stat().st_mode & 0o001 for step in (path.resolve(), *path.resolve().parents))
