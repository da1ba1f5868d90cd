"""`/metrics`: every figure is what a recount gives, and counters never shrink."""

import logging
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import ackflow
from ackflow import Session, VirtualClock
from ackflow.broker import access_tokens
from ackflow.broker.views.metrics import snapshot
from ackflow.store.tx import Tx
from ackflow.worker import Jobs
from ackflow.worker.coordination import job_metrics

from ..running import Running
from .conftest import Process

Start = Callable[..., Process]
Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]
GROUP = "__QUEUE_MODE__"


def scrape(http: httpx.Client) -> Figures:
    answer = http.get("/metrics")
    assert answer.status_code == 200, answer.text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(shown: Figures, name: str, /, **labels: str) -> float:
    return shown[name, tuple(sorted(labels.items()))]


def of_group(shown: Figures, name: str, **labels: str) -> float:
    return value(shown, name, queue="orders", group=GROUP, **labels)


def test_counters_follow_the_messages(
    served: Running, http: httpx.Client, clock: VirtualClock
) -> None:
    q = served.session
    q.push("orders", [1, 2, 3, 4])
    first, second, third = q.pop("orders", batch=3)
    first.ack()
    second.nack("no luck")
    third.reject("bad")
    shown = scrape(http)
    assert value(shown, "ackflow_messages_pushed_total", queue="orders") == 4
    assert of_group(shown, "ackflow_messages_delivered_total") == 3
    assert of_group(shown, "ackflow_messages_acked_total") == 1
    assert of_group(shown, "ackflow_messages_failed_total") == 1
    assert of_group(shown, "ackflow_messages_redelivered_total") == 0
    assert of_group(shown, "ackflow_dead_letters_total", kind="rejected") == 1
    q.pop("orders")
    shown = scrape(http)
    assert of_group(shown, "ackflow_messages_redelivered_total") == 1
    assert of_group(shown, "ackflow_messages", state="leased") == 1
    clock.advance(300)
    q.upkeep()
    assert of_group(scrape(http), "ackflow_leases_expired_total") == 1


def test_gauges_tell_what_is_there_now(
    served: Running, http: httpx.Client, clock: VirtualClock
) -> None:
    q = served.session
    q.push("orders", [1, 2, 3])
    q.push("orders", 4, delay=60)
    clock.advance(7)
    q.pop("orders")
    shown = scrape(http)
    states = {
        state: of_group(shown, "ackflow_messages", state=state)
        for state in ("ready", "leased", "waiting", "dead")
    }
    assert states == {"ready": 2, "leased": 1, "waiting": 1, "dead": 0}
    assert of_group(shown, "ackflow_lag") == 4
    assert of_group(shown, "ackflow_oldest_ready_age_seconds") == 7


def test_the_oldest_ready_message_may_be_one_that_came_back(
    served: Running, http: httpx.Client, clock: VirtualClock
) -> None:
    q = served.session
    q.push("orders", 1)
    clock.advance(5)
    q.push("orders", 2)
    q.pop("orders")[0].nack("again")
    assert of_group(scrape(http), "ackflow_oldest_ready_age_seconds") == 5


def test_time_to_ack_is_counted_per_message(
    served: Running, http: httpx.Client, clock: VirtualClock
) -> None:
    q = served.session
    q.push("orders", [1, 2, 3])
    batch = q.pop("orders", batch=3)
    clock.advance(2)
    q.ack(batch)
    shown = scrape(http)
    assert of_group(shown, "ackflow_time_to_ack_seconds_count") == 3
    assert of_group(shown, "ackflow_time_to_ack_seconds_sum") == 6
    assert of_group(shown, "ackflow_time_to_ack_seconds_bucket", le="1.0") == 0
    assert of_group(shown, "ackflow_time_to_ack_seconds_bucket", le="5.0") == 3


def test_what_was_rolled_back_is_neither_counted_nor_told(
    served: Running, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    q = served.session
    q.push("orders", [1, 2])
    first, second = q.pop("orders", batch=2)
    second.ack()
    work = q.transaction()
    work.reject(first, "bad")
    work.ack(second)
    with pytest.raises(ackflow.errors.TransactionFailed):
        work.commit()
    shown = scrape(http)
    assert not any(name == "ackflow_dead_letters_total" for name, _ in shown)
    assert "died" not in caplog.text


def test_requests_are_counted_by_route_and_status(http: httpx.Client) -> None:
    http.get("/livez")
    http.get("/livez")
    http.get("/nowhere")
    shown = scrape(http)
    name = "ackflow_http_requests_total"
    assert value(shown, name, method="GET", route="/livez", status="200") == 2
    assert value(shown, name, method="", route="", status="404") == 1
    name = "ackflow_http_request_seconds_count"
    assert value(shown, name, method="GET", route="/livez") == 2


def test_group_commit_is_shown(served: Running, http: httpx.Client) -> None:
    served.session.push("orders", 1)
    shown = scrape(http)
    assert value(shown, "ackflow_commits_total") >= 1
    assert value(shown, "ackflow_verbs_total") >= value(shown, "ackflow_commits_total")


def test_jobs_are_counted_by_name_and_status(
    served: Running, http: httpx.Client, clock: VirtualClock
) -> None:
    jobs = Jobs(served.session)
    jobs.run_unique("1", "import", lambda job: True)
    jobs.run_unique("2", "import", lambda job: True)
    jobs.run_unique("3", "export", lambda job: False)
    jobs.create_unique("4", "report")
    clock.advance(30)
    shown = scrape(http)
    assert value(shown, "ackflow_jobs", name="import", status="success") == 2
    assert value(shown, "ackflow_jobs", name="export", status="failed") == 1
    assert value(shown, "ackflow_jobs", name="report", status="new") == 1
    assert value(shown, "ackflow_job_oldest_seconds", status="new") == pytest.approx(30, abs=0.1)
    assert value(shown, "ackflow_job_oldest_seconds", status="running") == 0
    assert value(shown, "ackflow_workers") == 0


def test_the_names_of_jobs_are_bounded(
    served: Running, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_metrics, "MOST_NAMES", 2)
    jobs = Jobs(served.session)
    for n, name in enumerate(["a", "a", "b", "b", "c", "d"]):
        jobs.run_unique(str(n), name, lambda job: True)
    shown = scrape(http)
    found = {
        dict(labels)["name"]: n for (name, labels), n in shown.items() if name == "ackflow_jobs"
    }
    assert found == {"a": 2, "b": 2, job_metrics.OTHER: 2}
    monkeypatch.setattr(job_metrics, "MOST_ROOTS", 3)
    assert sum(n for (name, _), n in scrape(http).items() if name == "ackflow_jobs") == 3


def test_brokers_are_counted_but_not_for_some_queues(
    served: Running, http: httpx.Client, clock: VirtualClock
) -> None:
    clock.advance(2)
    served.session.broker._round()  # type: ignore[attr-defined]
    assert value(scrape(http), "ackflow_brokers") == 1
    assert "ackflow_brokers" not in http.get("/metrics", params={"queue": "orders"}).text
    token = served.session.broker.do(token_for_orders, True)
    served.app.auth.has_tokens()
    http.headers["authorization"] = f"Bearer {token}"
    text = http.get("/metrics").text
    assert "ackflow_uptime_seconds" in text
    assert "ackflow_brokers" not in text
    assert "ackflow_jobs" not in text


def token_for_orders(tx: Tx) -> str:
    return access_tokens.create(tx, "t", [access_tokens.grant("read-only:orders")], None)


def test_a_pattern_limits_what_is_shown(served: Running, http: httpx.Client) -> None:
    served.session.push("orders", 1)
    served.session.push("bills", 1)
    shown = http.get("/metrics", params={"queue": "ord*"}).text
    assert 'queue="orders"' in shown
    assert "bills" not in shown


def test_openmetrics_is_spoken_when_asked_for(http: httpx.Client) -> None:
    answer = http.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def totals(http: httpx.Client) -> dict[str, float]:
    """The sum of every counter of messages over all its labels."""
    sums: dict[str, float] = {}
    for (name, _), n in scrape(http).items():
        if name.startswith("ackflow_") and name.endswith("_total") and "http" not in name:
            sums[name] = sums.get(name, 0) + n
    return sums


def test_totals_never_shrink_whatever_is_deleted(
    served: Running, http: httpx.Client, clock: VirtualClock
) -> None:
    q = served.session
    steps: list[Callable[[], object]] = [
        lambda: q.push("orders", [1, 2, 3]),
        lambda: q.pop("orders", batch=2),
        lambda: clock.advance(301) or q.upkeep(),
        lambda: q.ack(q.pop("orders")),
        lambda: [d.requeue() for d in q.pop("orders")],
        lambda: [d.reject("bad") for d in q.pop("orders")],
        lambda: q.seek("orders", GROUP, to="start"),
        lambda: q.redrive("orders"),
        lambda: q.purge("orders"),
        lambda: q.delete_group("orders", GROUP),
        lambda: q.delete_queue("orders"),
        lambda: q.push("orders", 1),
    ]
    before = totals(http)
    for step in steps:
        step()
        after = totals(http)
        for name, n in before.items():
            assert after.get(name, 0) >= n, name
        before = after
    assert before["ackflow_messages_pushed_total"] == 4
    assert before["ackflow_dead_letters_total"] == 1
    assert before["ackflow_leases_expired_total"] == 1


def test_counters_survive_a_restart(start_process: Start, tmp_path: Path) -> None:
    server = start_process()
    post = {"json": {"item": 1}}
    httpx.post(server.url + "/queue/orders/push", **post)  # type: ignore[arg-type]
    httpx.post(server.url + "/queue/orders/pop?require_ack=true")
    assert server.stop() == 0
    again = start_process(db=server.db)
    with httpx.Client(base_url=again.url) as http:
        shown = scrape(http)
    assert value(shown, "ackflow_messages_pushed_total", queue="orders") == 1
    assert of_group(shown, "ackflow_messages_delivered_total") == 1
    assert of_group(shown, "ackflow_messages", state="leased") == 1


# the figures equal a recount


def recount(q: Session) -> list[tuple[str, int, int, int, int]]:
    found = []
    for queue in q.queues():
        for group in queue.groups:
            c = group.counts
            found.append((group.name, c.ready, c.leased, c.waiting, c.dead))
    return sorted(found)


def shown_by_figures(q: Session) -> list[tuple[str, int, int, int, int]]:
    groups = q.broker.look(snapshot).groups  # type: ignore[attr-defined]
    return sorted((g.name, g.ready, g.leased, g.waiting, g.dead) for g in groups if g.id)


def test_the_figures_equal_the_statistics_with_copies_delays_and_deletions(
    clock: VirtualClock,
) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        ids = q.push("orders", [1, 2, 3, 4, 5])
        q.group("orders", "other")
        q.push("orders", [6, 7], delay=30, partition="late")
        q.push("orders", [8, 9], partition="late")
        for delivery in q.pop("orders", batch=2):
            delivery.requeue()
        assert shown_by_figures(q) == recount(q)
        q.delete_message("orders", ids[3])
        assert shown_by_figures(q) == recount(q)
        q.pop("orders", batch=3)[0].reject("bad")
        q.pop("orders", group="other", batch=9)
        assert shown_by_figures(q) == recount(q)
        clock.advance(40)
        q.upkeep()
        assert shown_by_figures(q) == recount(q)
        clock.advance(400)
        q.upkeep()
        assert shown_by_figures(q) == recount(q)


# dead letters are logged


def test_each_dead_letter_is_logged_with_its_reason(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with ackflow.connect(":memory:", clock=clock, upkeep=False) as q:
        ids = q.push("orders", [1, 2])
        for delivery in q.pop("orders", batch=2):
            delivery.reject("no such customer")
    records = [r for r in caplog.records if r.name == "ackflow.dead"]
    assert [r.levelno for r in records] == [logging.WARNING] * 2
    assert {r.message_id for r in records} == set(ids)  # type: ignore[attr-defined]
    assert all("no such customer" in r.getMessage() for r in records)
    assert all("rejected" in r.getMessage() for r in records)
