"""Claim first: the shop delivers the same order five times, a worker runs it once, every delivery gets one answer."""

from twiceproof import App

app = App("sqlite:///shop.db")


@app.step(repeat="safe")
def save(order: dict[str, int]) -> None:
    print("saved order", order["id"])


@app.step(repeat="keyed", external="invoice:{result}")
def invoice(order: dict[str, int]) -> str:
    print("invoiced order", order["id"])
    return f"inv-{order['id']}"


@app.flow(key="shop:order:{order[id]}")
def take_order(order: dict[str, int]) -> str:
    save(order)
    return invoice(order)


handles = [take_order.start({"id": 10492}) for _ in range(5)]  # five deliveries, claimed before any work is done
print("runs:", len({handle.id for handle in handles}), "state:", handles[0].state)
app.worker().run(until_idle=True)
print("answers:", {handle.result(timeout=1) for handle in handles})
app.close()

# Prints:
# runs: 1 state: queued
# saved order 10492
# invoiced order 10492
# answers: {'inv-10492'}
