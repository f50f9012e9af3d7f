"""Simulators of the office services as places of a ledger, and stores on them."""

from twiceproof.clock import Clock
from twiceproof.prove.simulators import DataverseSimulator, SharePointSimulator
from twiceproof.stores.dataverse.engine import DataverseEngine
from twiceproof.stores.service_rows import COLUMNS
from twiceproof.stores.sharepoint.engine import LIST_COLUMNS, SharePointEngine

TABLE = "new_claims"


def dataverse(clock: Clock, **given) -> DataverseSimulator:
    columns = {TABLE: [f"new_{name}" for name in COLUMNS if name != "key"]}
    simulator = DataverseSimulator({TABLE: ["new_key"]}, columns=columns, **given)
    simulator.now = clock.now
    return simulator.start()


def sharepoint(clock: Clock, unique: str = "tp_key") -> SharePointSimulator:
    columns = [f"tp_{name}" for name in LIST_COLUMNS]
    simulator = SharePointSimulator(unique, columns=columns, indexed=["tp_space", "tp_due"])
    simulator.now = clock.now
    return simulator.start()


def dataverse_url(simulator: DataverseSimulator) -> str:
    return f"{simulator.url.replace('http', 'dataverse', 1)}/{TABLE}"


def sharepoint_url(simulator: SharePointSimulator) -> str:
    return f"{simulator.url.replace('http', 'sharepoint', 1)}/sites/shop/Claims"


def dataverse_engine(simulator: DataverseSimulator, clock: Clock) -> DataverseEngine:
    return DataverseEngine(dataverse_url(simulator), clock=clock)


def sharepoint_engine(simulator: SharePointSimulator, clock: Clock) -> SharePointEngine:
    return SharePointEngine(sharepoint_url(simulator), clock=clock)


PLACES = {
    "dataverse": (dataverse, dataverse_engine, dataverse_url),
    "sharepoint": (sharepoint, sharepoint_engine, sharepoint_url),
}
