"""`ackflow keys`: the keys that encrypt stored data."""

import secrets
import sys
import time

import typer

from ...broker.broker import Broker
from ...broker.key_rotation import Rotated, Rotation, key_usage
from ...errors import InvalidArgument, PayloadSealed
from ...store.encryption import given_keys
from ..command import Target, command
from ..output import Columns, plural

app = typer.Typer(no_args_is_help=True, help="Show and rotate the keys that encrypt stored data.")
REPORT_SECONDS = 1.0
UNBOUND = "none"  # of data that an older version encrypted without binding it to its place


def _broker(target: Target) -> Broker:
    if target.location.remote:
        raise InvalidArgument(
            "keys are managed in the database itself: give its file or PostgreSQL URL with --db"
        )
    broker = target.session.broker
    if not isinstance(broker, Broker):
        raise InvalidArgument("keys are rotated in one database at a time; give a single database")
    return broker


@app.command()
def create() -> None:
    """Print a new random key, for ACKFLOW_ENCRYPTION_KEY. It is not stored anywhere."""
    print(secrets.token_hex(32))


@command(app, "list", local=True, needs_reader=True)
def show(target: Target) -> None:
    """List the ids of the given keys and of the keys with which stored rows are encrypted."""
    used = key_usage(_broker(target))
    given = [key.hex() for key in given_keys()]
    unknown = [key for key in used if key and key not in given]
    if not given and not used:
        target.out.say("no keys: ACKFLOW_ENCRYPTION_KEY has none, and nothing is encrypted")
        return
    unbound = [("", "older format")] if used[""] else []
    roles = [(key, "encrypts" if key == given[0] else "decrypts") for key in given]
    roles += unbound + [(key, "not given") for key in sorted(unknown)]
    target.out.table(
        Columns(("key", "use", ">rows")),
        [[key or UNBOUND, role, f"{used[key]:,}"] for key, role in roles],
        [{"key": key or UNBOUND, "use": role, "rows": used[key]} for key, role in roles],
    )


@command(app, local=True)
def rotate(target: Target) -> None:
    """Encrypt stored data again with the first given key. Safe to interrupt and to run again.

    Give both keys to every process first, the new one first: ACKFLOW_ENCRYPTION_KEY=NEW,OLD.
    """
    broker = _broker(target)
    reporter = _Reporter(target)
    rotation = Rotation(broker, reporter)
    if rotation.run().resumed:
        target.out.note("continued an earlier rotation")
    done = rotation.state
    first, *others = [key.hex() for key in given_keys()]
    record = {"key": first, "resealed": done.resealed, "complete": done.complete,
              "unreadable": dict(done.unreadable)}  # fmt: skip
    if done.complete:
        spare = f"; no longer needed: {', '.join(others)}" if others else ""
        target.out.record(
            record,
            f"{plural(done.resealed, 'row')} encrypted again; everything uses key {first}{spare}. "
            "Backups and dumps made before still need the old key.",
        )
        return
    if done.unreadable:
        keys = ", ".join(f"{key} ({rows})" for key, rows in sorted(done.unreadable.items()))
        raise PayloadSealed(
            f"{plural(done.resealed, 'row')} encrypted again, but some rows cannot be opened with "
            f"the keys given, by key id: {keys}; give their key as well, and run this again"
        )
    raise PayloadSealed(
        f"{plural(done.resealed, 'row')} encrypted again, but other processes still encrypt with "
        f"another key: start them with {first} as the first key, and run this again"
    )


class _Reporter:
    """Prints the progress of a rotation to a terminal or log, about once a second."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._next = time.monotonic() + REPORT_SECONDS

    def __call__(self, state: Rotated) -> None:
        if time.monotonic() >= self._next and not self._target.out.as_json:
            self._next = time.monotonic() + REPORT_SECONDS
            print(
                f"pass {state.number}, {state.table}: {state.looked:,} rows read, "
                f"{state.resealed:,} encrypted again",
                file=sys.stderr,
            )
