"""One key, fifty tasks at once: one does the work, and all get its result."""

import asyncio

from twiceproof import App

app = App("sqlite:///welcome.db")
outbox: list[str] = []


@app.once(key="welcome:{customer[id]}", on_duplicate="wait", keep="forever")
async def send_welcome(customer: dict[str, str]) -> str:
    await asyncio.sleep(0)  # stands for the mail server
    outbox.append(customer["email"])
    return f"<welcome.{customer['id']}@example.org>"


async def main() -> None:
    ada = {"id": "7", "email": "ada@example.org"}
    answers = await asyncio.gather(*(send_welcome(ada) for _ in range(50)))
    print("answers:", len(answers), "different:", len(set(answers)))
    print("sent:", outbox)


asyncio.run(main())
app.close()

# Prints:
# answers: 50 different: 1
# sent: ['ada@example.org']
