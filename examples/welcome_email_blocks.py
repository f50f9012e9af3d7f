"""The welcome e-mail made of a ready-made effect: sent once, and not again when the mail server's answer is lost."""

from twiceproof import App, NeedsReview
from twiceproof.effects import mail
from twiceproof.prove.worlds.smtp import SmtpWorld

app = App("sqlite:///welcome.db")
relay = mail.smtp("mail.shop.test", port=25, tls="none")


@app.effect
def send_welcome(customer: dict[str, str]) -> mail.MailSending:
    message = mail.message(
        sender="shop@example.org", to=customer["email"], subject="Welcome", text=f"Hello {customer['name']}!"
    )
    return mail.send(message, via=relay)  # look=mail.imap(…) would find out what became of a mail without an answer


@app.flow(key="welcome:{customer[id]}", on_duplicate="wait")
def welcome(customer: dict[str, str]) -> str:
    return send_welcome(customer).message_id


ada = {"id": "7", "name": "Ada", "email": "ada@example.org"}
bob = {"id": "8", "name": "Bob", "email": "bob@example.org"}
with SmtpWorld(["mail.shop.test"]) as world:  # stands for the mail server
    ids = {welcome(ada) for _ in range(3)}
    print("calls: 3, different ids:", len(ids), world.look())

    world.lose(2)  # the second mail is taken, and its answer lost
    for _ in range(2):
        try:
            welcome(bob)
        except NeedsReview:
            print("bob: a person decides, and nothing is sent blindly")
    print(world.look())
app.close()

# Prints:
# calls: 3, different ids: 1 {'mail to ada@example.org: Welcome': 1}
# bob: a person decides, and nothing is sent blindly
# bob: a person decides, and nothing is sent blindly
# {'mail to ada@example.org: Welcome': 1, 'mail to bob@example.org: Welcome': 1}
