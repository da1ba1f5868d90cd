"""Every action of the dashboard: done in a browser, and its effect seen through the session."""

import json

import httpx
import pytest

from ackflow import LeaseLost
from ackflow.errors import NotFound
from ackflow.worker import Jobs, Schedules, every

from .conftest import Board, Browser
from .seed import jobs

pytestmark = pytest.mark.xdist_group("dashboard")


def audit(board: Board) -> list[tuple[str, str | None]]:
    return [(one["action"], one["queue"]) for one in board.get("/v1/audit")]


def test_a_queue_is_created_paused_configured_purged_and_deleted(
    board: Board, browser: Browser
) -> None:
    q = board.session
    browser.open("queues")
    browser.click("New queue")
    browser.fill("name", "made.here")
    browser.click("Create")
    browser.sees("No group reads this queue")
    assert q.queue_stats("made.here").messages == 0
    browser.click("Pause")
    browser.until(lambda: q.queue_stats("made.here").paused)
    browser.click("Resume")
    browser.until(lambda: not q.queue_stats("made.here").paused)
    browser.click("Edit")
    browser.fill("max_size", "77")
    browser.fill("retry_limit", "9")
    browser.click("Save")
    browser.until(lambda: q.queue_stats("made.here").options.max_size == 77)
    assert q.queue_stats("made.here").options.retry_limit == 9
    q.push("made.here", [1, 2, 3])
    browser.click("Purge")
    browser.fill("confirm", "made.here")
    browser.click("Purge all messages of made.here")
    browser.until(lambda: q.queue_stats("made.here").messages == 0)
    browser.click("Delete")
    browser.fill("confirm", "made.here")
    browser.click("Delete queue made.here")
    browser.until(lambda: "made.here" not in [queue.name for queue in q.queues()])
    mine = [action for action, queue in audit(board) if queue == "made.here"]
    assert mine == ["delete queue", "purge", "configure", "resume", "pause", "configure"]


def test_a_message_is_pushed_duplicated_edited_and_deleted(board: Board, browser: Browser) -> None:
    q = board.session
    browser.open("queues/pushed/push", "Push a message")
    browser.js("document.querySelector('textarea[name=data]').focus()")
    browser.fill("data", '{"exact": 12345678901234567890.10, "n": [1]}')
    browser.fill("headers", "tenant=eu")
    browser.fill("partition", "p1")
    browser.click("Push to pushed")
    browser.sees("1 message pushed")
    (first,) = q.browse("pushed")
    assert first.raw == b'{"exact": 12345678901234567890.10, "n": [1]}'
    assert (first.partition, first.headers) == ("p1", {"tenant": "eu"})
    browser.open(f"queues/pushed/messages/{first.id}", "12345678901234567890.10")
    browser.click("Edit and push again")
    browser.sees("Push a message")
    browser.fill("data", '{"edited": true}')
    browser.click("Push to pushed")
    browser.until(lambda: len(list(q.browse("pushed"))) == 2)
    edited = list(q.browse("pushed"))[1]
    assert (edited.data, edited.partition, edited.headers) == (
        {"edited": True},
        "p1",
        {"tenant": "eu"},
    )
    browser.open(f"queues/pushed/messages/{first.id}")
    browser.click("Delete")
    browser.click("Delete message")
    browser.until(lambda: len(list(q.browse("pushed"))) == 1)


def test_a_payload_that_is_not_json_is_refused(browser: Browser) -> None:
    browser.open("queues/orders/push", "Push a message")
    browser.fill("data", "{not json")
    browser.click("Push to orders")
    browser.sees("The payload is not JSON")


@pytest.mark.parametrize(
    ("button", "state", "kind"),
    [("Fail", "ready", None), ("Release", "ready", None), ("Reject", "dead", "rejected"),
     ("Dead-letter", "dead", None), ("Acknowledge", "acked", None)],
)  # fmt: skip
def test_a_held_message_is_settled_by_hand(
    board: Board, browser: Browser, button: str, state: str, kind: str | None
) -> None:
    q, name = board.session, f"held-{button.lower()}"
    q.push(name, {"n": 1})
    (message,) = q.pop(name, consumer="someone")
    browser.open(f"queues/{name}/messages/{message.id}", "Leased by someone")
    browser.click(button)
    if button in ("Fail", "Reject", "Dead-letter"):
        browser.fill("reason", "by hand")
    browser.click(button)
    browser.until(lambda: q.why(name, message.id).state == state)
    why = q.why(name, message.id)
    if state == "dead":
        assert why.error == "by hand"
        assert kind in (None, why.kind)
    if button != "Acknowledge":  # for the holder that is the end it wanted
        with pytest.raises(LeaseLost):
            message.ack()


def test_a_verdict_on_an_older_delivery_does_nothing(board: Board) -> None:
    q = board.session
    q.push("again", 1)
    q.pop("again")[0].release()
    (message,) = q.pop("again")
    message.nack(delay=0)
    (message,) = q.pop("again")
    body = {"verdict": "reject", "deliveries": 1}
    answer = httpx.post(f"{board.url}/v1/queues/again/messages/{message.id}/settle", json=body)
    assert answer.status_code == 409, answer.text
    assert q.why("again", message.id).state == "leased"


def test_a_lease_is_extended_and_released(board: Board, browser: Browser) -> None:
    q = board.session
    q.push("leased", [1, 2])
    held = q.pop("leased", batch=2, consumer="slow-one")
    until = q.leases("leased")[0].expires_at
    browser.open("leases?queue=leased", "slow-one")
    browser.click("Extend the lease of slow-one")
    browser.fill("seconds", "900")
    browser.click("Extend")
    browser.until(lambda: q.leases("leased")[0].expires_at > until)
    browser.click("Release the lease of slow-one")
    browser.click("Release 2 messages")
    browser.until(lambda: not q.leases("leased"))
    with pytest.raises(LeaseLost):
        held[0].ack()
    assert [message.deliveries for message in q.pop("leased", batch=2)] == [1, 1]


def test_a_group_is_paused_moved_after_a_preview_and_deleted(
    board: Board, browser: Browser
) -> None:
    q = board.session
    q.push("moved", list(range(10)))
    q.ack(q.pop("moved", group="g", batch=6))
    browser.open("queues/moved/groups/g", "Seek")
    browser.click("Pause")
    browser.until(lambda: q.group_stats("moved", "g").paused)
    browser.click("Resume")
    browser.until(lambda: not q.group_stats("moved", "g").paused)
    browser.click("Edit")
    browser.fill("max_ack_pending", "5")
    browser.click("Save")
    browser.until(lambda: q.group_stats("moved", "g").settings.max_ack_pending == 5)
    browser.click("Seek")
    browser.click("Preview")
    browser.sees("6 messages delivered again, 0 skipped, 0 taken from leases, in 1 lane")
    browser.click("Move g of moved")
    browser.until(lambda: q.group_stats("moved", "g").counts.ready == 10)
    browser.click("Delete")
    browser.click("Delete group g")
    browser.until(lambda: not q.queue_stats("moved").groups)


def dead(board: Board, queue: str, errors: list[str]) -> None:
    q = board.session
    q.push(queue, list(range(len(errors))))
    for message, error in zip(q.pop(queue, batch=len(errors)), errors, strict=True):
        message.reject(error)


def test_one_error_is_redriven_after_a_dry_run_and_the_others_stay(
    board: Board, browser: Browser
) -> None:
    dead(board, "mixed", ["no route 17", "no route 4", "bad address", "no route 99"])
    browser.open("dead?queue=mixed", "no route #")
    browser.click("Redrive 3 with error no route #")
    browser.sees("Dry run: 3 dead letters of mixed with this error")
    browser.click("Redrive 3 dead letters")
    browser.sees("Done: 3 items of 3")
    browser.click("Close")
    assert [one.reason for one in board.session.dead_letters("mixed")] == ["bad address"]
    assert len(board.session.pop("mixed", batch=10)) == 3


def test_selected_dead_letters_go_to_another_queue_and_the_rest_is_purged(
    board: Board, browser: Browser
) -> None:
    q = board.session
    dead(board, "chosen", ["a", "b", "c"])
    browser.open("queues/chosen/dead", "Redrive all of chosen")
    ids = [one.id for one in q.dead_letters("chosen")]
    browser.js(f"document.querySelector('[aria-label=\"Select {ids[0]}\"]').click()")
    browser.click("Redrive 1 selected")
    browser.fill("to", "chosen.later")
    browser.click("Redrive 1 dead letter")
    browser.sees("Done: 1 item")
    browser.click("Close")
    assert [one.data for one in q.browse("chosen.later")] == [2]
    browser.click("Purge all of chosen")
    browser.sees("Deletes 2 dead letters of chosen for good")
    browser.click("Purge 2 dead letters")
    browser.sees("Done: 2 items")
    assert not list(q.dead_letters("chosen"))
    assert ("purge dead letters", "chosen") in audit(board)


def test_dead_letters_are_exported_as_json_lines(board: Board) -> None:
    dead(board, "exported", [f"error {n}" for n in range(7)])
    seen, after = [], "0"
    while after:
        query = {"after": after, "limit": "3"}
        answer = httpx.get(f"{board.url}/v1/queues/exported/dead/export", params=query)
        seen += [json.loads(line) for line in answer.text.splitlines()]
        after = answer.headers.get("x-next", "")
    assert [one["data"] for one in seen] == list(range(7))
    assert seen[0]["reason"] == "error 0"


def test_a_bulk_delete_tells_what_was_not_done(board: Board, browser: Browser) -> None:
    q = board.session
    q.push("bulk", [1, 2, 3])
    browser.open("queues/bulk/messages", "3 shown")
    browser.js("document.querySelector('[aria-label=\"Select all shown\"]').click()")
    first = next(iter(q.browse("bulk")))
    q.delete_message("bulk", first.id)
    browser.click("Delete 3 selected")
    browser.click("Delete 3 selected")
    browser.sees("Done: 2 items of 3, 1 not done", first.id, "nothing to do")
    browser.click("Close")
    assert not list(q.browse("bulk"))


def test_a_bulk_action_without_effect_is_tried_once(board: Board, browser: Browser) -> None:
    q = board.session
    q.push("vanished", [1, 2])
    browser.open("queues/vanished/messages", "2 shown")
    browser.js("document.querySelector('[aria-label=\"Select all shown\"]').click()")
    for message in list(q.browse("vanished")):
        q.delete_message("vanished", message.id)
    browser.requests()
    browser.click("Delete 2 selected")
    browser.click("Delete 2 selected")
    browser.sees("Done: 0 items of 2, 2 not done")
    assert browser.js("return document.querySelectorAll('.failures li').length") == 2
    browser.click("Close")


def test_selected_dead_letters_that_are_gone_are_named(board: Board, browser: Browser) -> None:
    q = board.session
    dead(board, "half", ["a", "b"])
    browser.open("queues/half/dead", "Redrive all of half")
    browser.click("Pause live updates")
    browser.js("document.querySelector('[aria-label=\"Select all shown\"]').click()")
    gone = next(iter(q.dead_letters("half"))).id
    q.purge_dead("half", ids=[gone])
    browser.click("Redrive 2 selected")
    browser.click("Redrive 1 dead letter")
    browser.sees("Done: 1 item of 1, 1 not done", f"Dead letter {gone}", "not there any more")
    browser.click("Close")
    browser.click("Resume live updates")


def test_a_slow_redrive_is_cancelled_and_leaves_the_rest(board: Board, browser: Browser) -> None:
    dead(board, "slow", ["a", "b", "c", "d"])
    browser.open("queues/slow/dead", "Redrive all of slow")
    browser.click("Redrive all of slow")
    browser.fill("rate", "1")
    browser.click("Redrive 4 dead letters")
    browser.sees("Working: 1 item of 4")
    browser.click("Cancel")
    browser.sees("Cancelled: ")
    browser.click("Close")
    assert 1 <= len(list(board.session.dead_letters("slow"))) <= 3


def test_a_dead_message_is_redriven_from_its_page(board: Board, browser: Browser) -> None:
    dead(board, "one.dead", ["broken"])
    (letter,) = board.session.dead_letters("one.dead")
    browser.open(f"queues/one.dead/messages/{letter.message_id}", "Dead since")
    browser.click("Redrive")
    browser.click("Redrive 1 dead letter")
    browser.sees("Done: 1 item of 1")
    browser.click("Close")
    assert len(board.session.pop("one.dead", batch=10)) == 1


def test_the_tail_shows_what_is_pushed_and_pauses(board: Board, browser: Browser) -> None:
    q = board.session
    q.push("followed", {"first": 1})
    browser.open("queues/followed/tail", '{"first":1}')
    q.push("followed", {"second": 2})
    browser.sees('{"second":2}')
    q.push("followed", {"third": 3})
    browser.sees('{"third":3}', "3 seen")
    browser.click("Pause")
    q.push("followed", {"fourth": 4})
    browser.click("Resume")
    browser.sees('{"fourth":4}')
    assert not q.queue_stats("followed").groups


def test_a_job_is_shown_and_interrupted(board: Board, browser: Browser) -> None:
    root = jobs(board.session, "reindex")
    browser.open("work", "reindex")
    browser.click("reindex")
    browser.sees("Job reindex", "part 8", "5 success")
    browser.click("Interrupt this job")
    browser.click("Interrupt reindex")
    browser.until(lambda: Jobs(board.session).get(root).interrupted)
    browser.sees("4 cancelled")
    assert Jobs(board.session).get(root).counts["cancelled"] == 4
    assert audit(board)[0] == ("interrupt job", None)


def test_a_schedule_is_paused_and_goes_on_with_the_next_tick(
    board: Board, browser: Browser
) -> None:
    q = board.session
    browser.open("work", "cleanup")
    browser.click("Pause cleanup")
    browser.until(lambda: next(iter(Schedules(q).known())).paused)
    pushed = q.queue_stats("maintenance").messages
    schedules = Schedules(q)
    schedules.add("cleanup", every("15m"), queue="maintenance")
    board.clock.advance(3_600)
    assert schedules.run_due() == 0
    browser.click("Resume cleanup")
    browser.until(lambda: not next(iter(Schedules(q).known())).paused)
    assert schedules.run_due() == 0, "ticks of the pause are left out"
    board.clock.advance(900)
    assert schedules.run_due() == 1
    assert q.queue_stats("maintenance").messages == pushed + 1
    assert audit(board)[:2] == [("resume schedule", None), ("pause schedule", None)]


def test_actions_say_why_they_are_refused(board: Board, browser: Browser) -> None:
    q = board.session
    q.push("gone", 1)
    (message,) = q.pop("gone", consumer="c")
    browser.open(f"queues/gone/messages/{message.id}", "Leased by c")
    browser.click("Pause live updates")
    message.ack()
    browser.click("Release")
    browser.click("Release")
    browser.sees("already")
    with pytest.raises(NotFound):
        q.message("gone", "0" * 8 + "-0000-8000-8000-" + "0" * 12)
