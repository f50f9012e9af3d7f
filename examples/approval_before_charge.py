"""An approval before money moves: the run waits without holding anything, and is decided once."""

from twiceproof import App, Waiting

app = App("sqlite:///orders.db")
charged: list[int] = []


@app.step(repeat="keyed")
def charge(order: dict[str, int]) -> str:
    charged.append(order["total"])
    return f"receipt-{order['id']}"


@app.flow(key="order:{order[id]}")
def sync_order(order: dict[str, int]) -> str:
    if order["total"] > 500:
        app.approve("charge", show=order, timeout="2d")
    return charge(order)


small, large = {"id": 1, "total": 20}, {"id": 2, "total": 900}
print(sync_order(small))
try:
    sync_order(large)
except Waiting:
    print("order 2 waits for a person")

(request,) = app.approvals()
for person, approved in (("ann", True), ("bob", False)):  # bob is too late: it is decided
    decided = app.decide(request.id, approved, by=person)
    print(person, "is first:", decided.first, "it stands:", decided.decision and decided.decision.by)

app.worker().run(until_idle=True)  # `twiceproof work` does this, for ever
print(sync_order(large), charged)
app.close()

# Prints:
# receipt-1
# order 2 waits for a person
# ann is first: True it stands: ann
# bob is first: False it stands: ann
# receipt-2 [20, 900]
