"""A saga: the third step fails for good, and what was done before it is undone, in reverse, once each."""

from twiceproof import App, NotDone, PriorFailure, Retry

app = App("sqlite:///trip.db")


@app.step(repeat="safe")
def cancel_flight(result: str) -> None:
    print("  cancel", result)


@app.step(repeat="safe")
def cancel_hotel(result: str) -> None:
    print("  cancel", result)


@app.step(repeat="keyed", undo=cancel_flight)
def book_flight(trip: int) -> str:
    print("  book flight")
    return f"flight-{trip}"


@app.step(repeat="keyed", undo=cancel_hotel)
def book_hotel(trip: int) -> str:
    print("  book hotel")
    return f"hotel-{trip}"


@app.step(repeat="keyed", retry=Retry(attempts=2, first="10ms"))
def book_car(trip: int) -> str:
    print("  book car")
    raise NotDone("no cars left")  # refused: nothing happened


@app.flow(key="trip:{trip}")
def book_trip(trip: int) -> list[str]:
    return [book_flight(trip), book_hotel(trip), book_car(trip)]


for call in ("first", "second"):
    print(call, "call")
    try:
        book_trip(7)
    except (NotDone, PriorFailure) as error:
        print(" ", type(error).__name__)
app.close()

# Prints:
# first call
#   book flight
#   book hotel
#   book car
#   book car
#   cancel hotel-7
#   cancel flight-7
#   NotDone
# second call
#   PriorFailure
