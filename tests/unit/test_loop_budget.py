"""When an event loop runs transactions itself."""

from ackflow.store.commit_pause import MAX_PAUSE_SECONDS, LoopBudget


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def known(time: Time) -> LoopBudget:
    """A budget after many short fsyncs."""
    budget = LoopBudget(time)
    for _ in range(50):
        budget.synced(0.0001)
    return budget


def test_nothing_is_allowed_before_fsyncs_are_known_to_be_short() -> None:
    budget = LoopBudget(Time())
    assert not budget.allows()
    budget.synced(0.0001)
    assert not budget.allows()


def test_short_fsyncs_allow_it_and_slow_ones_end_it() -> None:
    budget = known(Time())
    assert budget.allows()
    for _ in range(10):
        budget.synced(0.001)
    assert not budget.allows()


def test_one_slow_fsync_among_many_changes_nothing() -> None:
    budget = known(Time())
    budget.synced(0.01)
    assert budget.allows()


def test_after_a_long_turn_there_is_a_pause_that_doubles_up_to_a_limit() -> None:
    time = Time()
    budget = known(time)
    pauses = []
    for _ in range(9):
        budget.ran(0.1)
        began = time.now
        while not budget.allows():
            time.now += 0.5
        pauses.append(time.now - began)
    assert pauses == [1, 2, 4, 8, 16, 32, *[MAX_PAUSE_SECONDS] * 3]


def test_after_a_quiet_while_the_pause_is_short_again() -> None:
    time = Time()
    budget = known(time)
    for _ in range(3):
        budget.ran(0.1)
        time.now += 10
    time.now += 600
    budget.ran(0.1)
    time.now += 1
    assert budget.allows()


def test_a_long_fsync_of_another_thread_counts_as_well() -> None:
    budget = known(Time())
    budget.synced(0.1)
    assert not budget.allows()
