"""What an Azure Table URL says: the account, the table, and how many lanes."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from ...errors import Misuse
from ..dynamodb.url import read_lanes, refuse_login, refuse_unknown

__all__ = ["CONNECTION_STRING", "LANES", "AzureTableUrl"]

CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"
# A transaction stays within a lane, so claims share one only there: fewer lanes, fewer requests. The service does 2,000
# changes a second in each, which is 400 claims, taken and completed.
LANES = 4
FORM = (
    "write azure-table://ACCOUNT/TABLE, which signs in as azure-identity does, or azure-table:///TABLE with "
    f"{CONNECTION_STRING} in the environment"
)


class AzureTableUrl(Struct, frozen=True):
    """Without an account, a connection string from the environment names the place and contains the secret."""

    account: str | None
    table: str
    lanes: int

    @classmethod
    def of(cls, url: str) -> AzureTableUrl:
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise Misuse(f"The Azure Table URL cannot be read; {FORM}.") from None
        refuse_login(parts.username, parts.password, "azure-identity or the environment has the secret")
        table = parts.path.strip("/")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{2,62}", table):
            raise Misuse(f"The Azure Table URL names no table (3 to 63 letters and digits); {FORM}.")
        refuse_unknown(options, ("lanes",))
        account = parts.hostname
        if account is not None and "-secondary" in account:
            raise Misuse("The URL names an account's secondary, which lags behind; name the account itself.")
        if account is not None and not re.fullmatch(r"[a-z0-9]{3,24}|[a-z0-9]{3,24}\.table\.[a-z0-9.-]+", account):
            raise Misuse(f"The Azure Table URL names no storage account; {FORM}.")
        return cls(account, table, read_lanes(options.get("lanes", str(LANES))))

    @property
    def endpoint(self) -> str:
        account = self.account or ""
        return f"https://{account if '.' in account else account + '.table.core.windows.net'}"
