"""The welcome e-mail, made of a ready-made effect: after silence the sent folder is searched, and nothing sent blindly."""

from twiceproof import App, Waiting, env
from twiceproof.effects import mail
from twiceproof.prove.worlds.smtp import ImapWorld, SmtpWorld

app = App("sqlite:///welcome.db")
relay = mail.smtp("mail.shop.example", port=25, tls="none")
sent = mail.imap("imap.shop.example", user="shop", password=env("MAIL_PASSWORD"), copies=True)


@app.effect
def send_welcome(customer: dict[str, str]) -> mail.MailSending:
    message = mail.message(
        sender="shop@shop.example", to=customer["email"], subject="Welcome", text=f"Hello {customer['name']}!"
    )
    return mail.send(message, via=relay, look=sent)  # without look=, a person is asked after silence


@app.flow(key="welcome:{customer[id]}", on_duplicate="wait", keep="forever")
def welcome(customer: dict[str, str]) -> str:
    return send_welcome(customer).message_id


def main() -> None:
    ada = {"id": "7", "name": "Ada", "email": "ada@example.org"}
    bob = {"id": "8", "name": "Bob", "email": "bob@example.org"}
    with SmtpWorld(["mail.shop.example"]) as post, ImapWorld(["imap.shop.example"], post):  # stand for the servers
        print("calls: 3, different ids:", len({welcome(ada) for _ in range(3)}))
        post.lose(2)  # the second mail is taken, and its answer lost
        for _ in range(2):
            try:
                welcome(bob)
            except Waiting as waiting:
                print("bob:", waiting.why.partition(" at 2")[0])  # when the mail can no longer be on its way
        print(post.look())
    app.close()


if __name__ == "__main__":
    main()

# Prints:
# calls: 3, different ids: 1
# bob: send_welcome will be looked for at its destination
# bob: send_welcome will be looked for at its destination
# {'mail to ada@example.org: Welcome': 1, 'mail to bob@example.org: Welcome': 1}
