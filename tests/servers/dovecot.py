"""Dovecot, a real IMAP server: accounts that share one password, with mails in files of its directory."""

import os
import shutil
import socket
from email.message import EmailMessage
from functools import cache
from pathlib import Path
from typing import ClassVar

from tests.servers.account import server_account
from tests.servers.process import ServerProcess, Unavailable

CONFIGURATION = """
protocols = imap
listen = 127.0.0.1
base_dir = {directory}/run
state_dir = {directory}/run
log_path = /dev/stderr
ssl = no
disable_plaintext_auth = no
default_internal_user = {user}
default_internal_group = {group}
default_login_user = {user}
mail_location = maildir:{directory}/mail/%u
first_valid_uid = 0
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={user} gid={group} home={directory}/mail/%u
}}
namespace inbox {{
  inbox = yes
  separator = /
  mailbox "Sent Items" {{
    auto = create
    special_use = \\Sent
  }}
  mailbox Other {{
    auto = create
  }}
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service anvil {{
  chroot =
}}
service stats {{
  chroot =
}}
"""


@cache
def _program() -> Path:
    found = shutil.which("dovecot") or shutil.which("dovecot", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise Unavailable("dovecot cannot be had: not on PATH nor in /usr/sbin (Debian package `dovecot-imapd`)")
    return Path(found)


class Dovecot(ServerProcess):
    """Every account exists. Its sent folder is called `Sent Items`, and marked as such."""

    kind: ClassVar[str] = "dovecot"
    password = "letmein"

    def command(self) -> list[str]:
        account = server_account()
        user, group = account.get("user", os.geteuid()), account.get("group", os.getegid())
        path = self.directory / "dovecot.conf"
        path.write_text(
            CONFIGURATION.format(
                directory=self.directory, port=self.port, user=_name(user), group=_group(group), password=self.password
            )
        )
        path.chmod(0o644)
        return [str(_program()), "-F", "-c", str(path)]

    def ready(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as there:
                return there.recv(100).startswith(b"* OK")
        except OSError:
            return False

    def store(self, user: str, mail: EmailMessage | bytes, folder: str = "Sent Items") -> None:
        """Put a mail into a folder, as a provider does with a copy of what was sent."""
        import imaplib

        data = mail if isinstance(mail, bytes) else mail.as_bytes()
        with imaplib.IMAP4(self.host, self.port) as server:
            server.login(user, self.password)
            server.append(f'"{folder}"', "", "", data)


def _name(uid: int) -> str:
    import pwd

    return pwd.getpwuid(uid).pw_name


def _group(gid: int) -> str:
    import grp

    return grp.getgrgid(gid).gr_name
