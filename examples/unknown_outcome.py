"""The ambiguous case: the work may be done, the answer is lost. It goes to review, and a person settles it."""

from twiceproof import App, NeedsReview

app = App("sqlite:///payouts.db")
paid: list[int] = []


@app.once(key="payout:{payout_id}")
def pay_out(payout_id: int) -> str:
    paid.append(payout_id)  # the bank has done it …
    raise TimeoutError("no answer from the bank")  # … and its answer was lost


for _ in range(3):
    try:
        pay_out(5)
    except NeedsReview as error:
        print("in review:", error.reason)
print("paid:", len(paid), "time")

# What `twiceproof claims settle pay_out payout:5 --happened --result '"tx-991"'` does:
app.settle("pay_out", "payout:5", "happened", result="tx-991", by="ada", note="seen in the bank's books")
print("after the settlement:", pay_out(5))
print("paid:", len(paid), "time")

app.close()

# Prints:
# in review: TimeoutError while it ran: whether its work was done is unknown
# in review: TimeoutError while it ran: whether its work was done is unknown
# in review: TimeoutError while it ran: whether its work was done is unknown
# paid: 1 time
# after the settlement: tx-991
# paid: 1 time
