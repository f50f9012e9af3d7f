"""Simulators of services that are not available for tests, written from their makers' documents.

They are ours: a test against one shows that a client follows the documents, not that the service does.
"""

from .dataverse import DataverseSimulator
from .mailboxes import GmailSimulator, GraphSimulator
from .service_bus import ServiceBusSimulator
from .tables import AirtableSimulator, SharePointSimulator, SheetsSimulator

__all__ = [
    "AirtableSimulator",
    "DataverseSimulator",
    "GmailSimulator",
    "GraphSimulator",
    "ServiceBusSimulator",
    "SharePointSimulator",
    "SheetsSimulator",
]
