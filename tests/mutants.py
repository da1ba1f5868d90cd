"""Put 40 deliberate bugs into the broker and the store, one at a time: the tests must detect them.

Usage: python tests/mutants.py [--jobs N] [--no-baseline] [--list] [NAME ...]

Each mutant replaces a piece of source text that must occur exactly once under broker/core and store.
It runs in a temporary copy of the tree, with the inner-ring tests that should detect it, on the
memory store. The exit code is 0 when at least 38 of the 40 are detected.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SEARCHED = ("src/ackflow/broker/core", "src/ackflow/store")
COPIED = ("src", "tests", "docs", "examples", "README.md", "pyproject.toml")
REQUIRED = 38
TIMEOUT_SECONDS = 600
PASSED, FAILED = 0, 1  # exit codes of pytest
MEMORY_ONLY = "memory or not (file or http or postgres)"


class Mutant(NamedTuple):
    """A bug: the guarantee it breaks, the text it replaces, and the test files that detect it."""

    name: str
    guarantee: str
    old: str
    new: str
    tests: str


class Result(NamedTuple):
    mutant: Mutant
    detected: bool
    seconds: float


class InvalidMutant(Exception):
    """A mutant that cannot be judged: its text is not there, or its tests do not run."""


MUTANTS = [
    # I1: a confirmed push is never lost
    Mutant(
        "trimming ignores what is leased or waiting", "I1",
        "free = [s for s in settled if not ranges.clip(used, s.first, s.stop)]",
        "free = settled",
        "test_retention",
    ),
    Mutant(
        "trimming ignores the slowest group", "I1",
        "if segment.stop > low or segment.created_at > limit",
        "if segment.created_at > limit",
        "test_retention",
    ),
    Mutant(
        "retention removes what is leased", "I1",
        "if not ranges.clip(held, ",
        "if True or not ranges.clip(held, ",
        "test_retention",
    ),
    Mutant(
        "a push marks no lane as ready", "I1",
        "and not cursor.ready:\n            cursor.ready = True",
        "and not cursor.ready:\n            cursor.ready = False",
        "test_push_and_pop test_waiting",
    ),
    Mutant(
        "a push is answered before it is synced", "I1",
        '"acks": ("normal", True),',
        '"acks": ("normal", False),',
        "unit/test_wal_sync unit/test_unsynced_writes",
    ),
    Mutant(
        "a message is shown before it is synced", "I1",
        "if cells[at] == lane and cells[at + 1] < stop:",
        "if cells[at] < 0:",
        "unit/test_unsynced_writes",
    ),
    Mutant(
        "a sync after a failed one confirms its commits", "I1",
        "if cells[FAILED] != cells[CLEARED]:",
        "if cells[FAILED] < 0:",
        "unit/test_unsynced_writes",
    ),
    Mutant(
        "an error of one verb fails its whole group", "I1",
        "if len(group) == 1 or isinstance(error, STORE_ERRORS):",
        "if group:",
        "crash/test_group_commit",
    ),
    Mutant(
        "messages are created at a time before the one before them", "I1",
        "return lane.last_at if tx.now < lane.last_at <= tx.now + AHEAD else tx.now",
        "return tx.now",
        "test_metadata",
    ),
    Mutant(
        "a known transaction id is pushed again", "I1",
        "elif place := before.get(txid):",
        "elif place := before.get(''):",
        "test_keys_and_dedup",
    ),
    # I2: a confirmed ack is never delivered again
    Mutant(
        "a nack is not noticed by the next pop", "I2",
        "if claim.state == DUE:\n            self.nothing_due",
        "if claim.at == 1:\n            self.nothing_due",
        "test_settle test_order",
    ),
    Mutant(
        "an ack of policy all settles its own lease only", "I2",
        "outcome.settled += self._ack_for_all(lane, mine[-1])",
        "outcome.settled += 0",
        "test_groups",
    ),
    Mutant(
        "an ack up to a message settles what follows it", "I2",
        "mine = ranges.clip(held, 0, asked[-1])",
        "mine = held",
        "test_settle",
    ),
    # I3: at most one live lease per message and group
    Mutant(
        "a lease lasts a microsecond too long", "I3",
        "if lease.ended_at is None and lease.expires_at <= tx.now:",
        "if lease.ended_at is None and lease.expires_at < tx.now:",
        "test_fencing",
    ),
    Mutant(
        "what is handed out again stays due", "I3",
        "tx.save_claim(claim) if claim.ranges else tx.drop_claim(claim)\n        _merge(",
        "_merge(",
        "test_order test_settle",
    ),
    Mutant(
        "an extended lease ends at its first end", "I3",
        "if cursor is not None and cursor.kept == lease.id:",
        "if cursor is not None and cursor.kept == -1:",
        "unit/test_claims_in_cursors test_fencing",
    ),
    Mutant(
        "an exclusive group has several leases", "I3",
        "if end is not None and end > tx.now:",
        "if end is not None and end < 0:",
        "test_groups",
    ),
    Mutant(
        "a pop repeated with its token is another lease", "I3",
        "if request.token is not None and (lease := tx.lease(request.token)):",
        "if request.token == -1 and (lease := tx.lease(request.token)):",
        "test_push_and_pop",
    ),
    # I4: a stale token changes nothing
    Mutant(
        "a second, different verb is taken for a repeat", "I4",
        "if fate.verb == verb:",
        "if fate.verb:",
        "test_fencing",
    ),
    Mutant(
        "an expired lease can be extended", "I4",
        "if lease.expires_at <= tx.now:\n        raise LeaseExpired()",
        "if lease.expires_at < 0:\n        raise LeaseExpired()",
        "test_fencing",
    ),
    # I5: limits hold, then exactly one dead letter
    Mutant(
        "a failure is not counted", "I5",
        "claim.failures + 1, verdict.reason or claim.error",
        "claim.failures, verdict.reason or claim.error",
        "test_delays_and_limits",
    ),
    Mutant(
        "a release counts as a delivery", "I5",
        "claim.deliveries - 1, claim.failures, claim.error",
        "claim.deliveries, claim.failures, claim.error",
        "test_delays_and_limits",
    ),
    Mutant(
        "an expiry allows one delivery too many", "I5",
        "after_expiry(group.rules, claim.deliveries, ended)",
        "after_expiry(group.rules, claim.deliveries - 1, ended)",
        "test_delays_and_limits",
    ),
    Mutant(
        "a pause begins when an expiry is noticed", "I5",
        "after_expiry(group.rules, claim.deliveries, ended)",
        "after_expiry(group.rules, claim.deliveries, tx.now)",
        "test_delays_and_limits",
    ),
    Mutant(
        "max_wait counts after the first delivery", "I5",
        "claim.redelivered or claim.since + micros(limit) > tx.now",
        "claim.since + micros(limit) > tx.now",
        "test_delays_and_limits",
    ),
    Mutant(
        "a redriven message keeps a failure", "I5",
        "Carry(0, 0, True)",
        "Carry(0, 1, True)",
        "test_dead_letters test_order",
    ),
    # I6: everything adds up
    Mutant(
        "a requeued message is not counted as done", "I6",
        "cursor.done += ranges.count(part)\n        return 0",
        "return 0",
        "test_settle test_order",
    ),
    Mutant(
        "a dead letter is not counted", "I6",
        "cursor.dead += len(rows)",
        "cursor.dead += 0",
        "test_inspection test_dead_letters",
    ),
    Mutant(
        "a deleted message is passed without being counted", "I6",
        "cursor.purged += stop - first - ranges.count(there)",
        "cursor.purged += 0",
        "test_inspection test_admin stateful/test_broker",
    ),
    Mutant(
        "a seek back keeps what was done", "I6",
        "cursor.done = cursor.dead = cursor.purged = cursor.expired = 0",
        "cursor.dead = cursor.purged = cursor.expired = 0",
        "test_admin test_seek",
    ),
    # I7: an ordered group is served in order
    Mutant(
        "new messages pass one that waits", "I7",
        "if n < want and held_at is None and cursor.next < lane.head:",
        "if n < want and cursor.next < lane.head:",
        "test_groups",
    ),
    Mutant(
        "a leased partition is served again", "I7",
        "tx.block_partition(group.id, partition, True)",
        "tx.block_partition(group.id, partition, False)",
        "test_groups",
    ),
    Mutant(
        "the first settle of a lease frees its partition", "I7",
        'if not tx.is_leased(group.id, partition):',
        "if partition:",
        "test_groups test_ordered_group_failure",
    ),
    # I8: a transaction is all or nothing
    Mutant(
        "a failed transaction keeps its first operations", "I8",
        "with tx.savepoint():\n        results = run_all(",
        "if tx:\n        results = run_all(",
        "test_transactions",
    ),
    Mutant(
        "a transaction goes on after a refused settle", "I8",
        "if outcome.refused:\n            raise outcome",
        "if outcome.settled < 0:\n            raise outcome",
        "test_transactions",
    ),
    Mutant(
        "a key answers for another body", "I8",
        "if row[0] != digest:",
        "if row[0] == 0:",
        "test_keys_and_dedup test_transactions",
    ),
    Mutant(
        "a batch of stages is published twice", "I8",
        "if known is not None and batch <= known.batch:",
        "if known is not None and batch < known.batch:",
        "test_stages",
    ),
    # I9: priority decides among ready messages
    Mutant(
        "lanes are served by turn before priority", "I9",
        "order by priority, served, lane limit ?4",
        "order by served, priority, lane limit ?4",
        "test_order",
    ),
    # I10: every number shown equals a recount
    Mutant(
        "hand-outs of messages that came back are not counted", "I10",
        "cursor.delivered += n\n",
        "cursor.delivered += 0\n",
        "test_metadata test_inspection",
    ),
    Mutant(
        "the window counts what was settled", "I10",
        "room = window - tx.in_window(group.id)",
        "room = window",
        "test_groups",
    ),
]  # fmt: skip


def place_of(mutant: Mutant, root: Path) -> Path:
    """The one file that holds the text of a mutant."""
    files = [path for folder in SEARCHED for path in sorted((root / folder).rglob("*.*"))]
    sources = [path for path in files if path.suffix in (".py", ".sql")]
    found = {path: n for path in sources if (n := path.read_text().count(mutant.old))}
    if sum(found.values()) != 1:
        places = ", ".join(f"{path.relative_to(root)} ({n})" for path, n in found.items())
        raise InvalidMutant(
            f"{mutant.name}: its text must occur once, but occurs in: {places or 'no file'}\n"
            f"    {mutant.old!r}"
        )
    return next(iter(found))


def copy_tree() -> Path:
    target = Path(tempfile.mkdtemp(prefix="ackflow-mutants-"))
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target / name, ignore=ignored)
        elif source.exists():
            shutil.copy(source, target / name)
    return target


def run_tests(root: Path, tests: str) -> int:
    """The exit code of pytest; a run that hangs has failed."""
    files = [f"tests/{name if '/' in name else f'conformance/{name}'}.py" for name in tests.split()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not outer and not soak", "-k", MEMORY_ONLY, *files]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            command, cwd=root, env=environment, timeout=TIMEOUT_SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return FAILED
    if ran.returncode not in (PASSED, FAILED):
        raise InvalidMutant(f"pytest ended with {ran.returncode}:\n{ran.stdout[-2000:]}")
    return ran.returncode


def judge(mutant: Mutant, root: Path) -> Result:
    """Whether the tests detect a mutant; the tree is as before afterwards."""
    started = time.monotonic()
    path = place_of(mutant, root)
    source = path.read_text()
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        code = run_tests(root, mutant.tests)
    finally:
        path.write_text(source)
    return Result(mutant, code == FAILED, time.monotonic() - started)


def check_baseline(mutants: list[Mutant]) -> None:
    """The tests must pass without a mutant, or their failures mean nothing."""
    tree = copy_tree()
    names = sorted({name for mutant in mutants for name in mutant.tests.split()})
    try:
        if run_tests(tree, " ".join(names)) != PASSED:
            raise InvalidMutant("the tests fail without any mutant")
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def judge_all(mutants: list[Mutant], jobs: int, baseline: bool) -> list[Result]:
    trees: SimpleQueue[Path] = SimpleQueue()
    for _ in range(jobs):
        trees.put(copy_tree())

    def one(mutant: Mutant) -> Result:
        tree = trees.get()
        try:
            result = judge(mutant, tree)
        finally:
            trees.put(tree)
        word = "detected" if result.detected else "SURVIVED"
        print(f"{word}  {mutant.guarantee:<4} {mutant.name}  ({result.seconds:.0f} s)", flush=True)
        return result

    try:
        if baseline:
            check_baseline(mutants)
        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mutants))
    finally:
        while not trees.empty():
            shutil.rmtree(trees.get(), ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-baseline", action="store_true", help="skip the run without mutants")
    parser.add_argument("--list", action="store_true", help="check every text and run nothing")
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in MUTANTS
        if not options.names or any(name in mutant.name for name in options.names)
    ]
    try:
        for mutant in mutants:
            place = place_of(mutant, ROOT).relative_to(ROOT)
            if options.list:
                print(f"{mutant.guarantee:<4} {mutant.name}: {place}")
        if options.list:
            return 0
        results = judge_all(mutants, options.jobs, not options.no_baseline)
    except InvalidMutant as problem:
        print(problem, file=sys.stderr)
        return 2
    detected = sum(result.detected for result in results)
    allowed = len(MUTANTS) - REQUIRED
    print(f"{detected} of {len(results)} mutants detected, {REQUIRED} of {len(MUTANTS)} required")
    return 0 if len(results) - detected <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
