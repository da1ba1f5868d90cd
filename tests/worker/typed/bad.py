"""Mistakes that type checkers find. Each line that ends with `# error` has one."""

from ackflow.worker import Worker

worker = Worker("shop.db")


@worker.task("mail")
def send_mail(to: str, subject: str = "Hello", *, copies: int = 1) -> int:
    return copies


@worker.task("mail")
async def fetch(url: str) -> bytes:
    return url.encode()


fetch.push(5)  # error
send_mail.push(5)  # error
send_mail.push("a", subjekt="Hi")  # error
send_mail.push()  # error
send_mail.push("a", copies="2")  # error
send_mail.push_with(delay=60)(5)  # error
fetch.push_with(delay=60)(5)  # error
send_mail.push_with(dellay=60)("a")  # error
send_mail.push_with(within="shop.db")("a")  # error
worker.run(concurency=8)  # error
Worker("shop.db", redelivery_dellay=5)  # error
text: str = send_mail.push("a").result()  # error


@worker.processor("orders", max_delivery=5)  # error
def bill(message: object, session: object) -> object:
    return None


@worker.task("mail2", retrise=3)  # error
def again() -> None: ...


@worker.job("reports", time_limit="soon")  # error
def report(message: object) -> bool:
    return True
