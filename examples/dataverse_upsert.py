"""Dataverse: an order is upserted by its alternate key, created by one of two, and counted up without losing a change."""

from twiceproof import App, NotDone
from twiceproof.effects import dataverse
from twiceproof.prove.simulators import DataverseSimulator

app = App("sqlite:///orders.db")


def count_up(row: dict[str, int]) -> dict[str, int]:
    return {"shop_visits": row.get("shop_visits", 0) + 1}


with DataverseSimulator({"shop_orders": ["shop_number"]}) as simulator:  # ours, on this machine; not the service
    org = dataverse.environment(simulator.url, auth=lambda: "a token")
    key = {"shop_number": "A-17"}

    @app.effect
    def save(order: dict[str, int]) -> dataverse.DataverseWrite:
        return dataverse.upsert(org, "shop_orders", key, {"shop_total": order["total"]})

    @app.effect
    def visit(order: dict[str, int]) -> dataverse.DataverseChange:
        return dataverse.change(org, "shop_orders", key, count_up, mark="shop_effects")

    @app.flow(key="order:{order[id]}:{order[total]}")
    def sync(order: dict[str, int]) -> bool | None:
        created = save(order).created
        visit(order)
        return created

    # `If-Match: *` is sometimes shown as an upsert. It means update only, and never creates:
    try:
        dataverse.update_only(org, "shop_orders", key, {"shop_total": 1}).perform("tp_1")
    except NotDone as error:
        print("update_only:", str(error).partition(",")[0], simulator.rows("shop_orders"))

    print("created:", sync({"id": 17, "total": 20}), "again:", sync({"id": 17, "total": 20}))
    simulator.lose_answer("PATCH")  # carried out, and its answer lost
    print("created:", sync({"id": 17, "total": 25}))
    row = simulator.rows("shop_orders")[0]
    print("rows:", len(simulator.rows("shop_orders")), "total:", row["shop_total"], "visits:", row["shop_visits"])

    try:
        dataverse.create_only(org, "shop_orders", key, {"shop_total": 1}).perform("tp_2")
    except NotDone:
        print("create_only: it is there already")
app.close()

# Prints:
# update_only: update_only of shop_orders(shop_number='A-17') is not there []
# created: True again: True
# created: False
# rows: 1 total: 25 visits: 2
# create_only: it is there already
