"""The hooks of extensions and middleware, and how a worker calls them.

An extension follows the consumer; middleware follows one message or push. Both are added with
`worker.add(...)`; one class may be both. A hook that fails is logged, and costs no message.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .context import Context, RunState
from .sending import Push
from .status import Reject, Requeue

if TYPE_CHECKING:
    from .coordination.running_job import JobRun
    from .worker import Worker

log = logging.getLogger("ackflow.worker")


class Extension:
    """Hooks of the consumer, in the order in which they are called. All do nothing by default."""

    def attached(self, worker: "Worker") -> None:
        """Called by `worker.add`."""

    def on_start(self, run: RunState) -> None:
        """Called once, before the first message is received."""

    def before_receive(self, run: RunState) -> None:
        """Called before each pop; it may interrupt the consumer."""

    def pre_received(self, context: Context) -> None:
        """Called before a message is processed. It may set the status, or delay the message."""

    def post_received(self, context: Context) -> None:
        """Called after a message was settled."""

    def idle(self, run: RunState) -> None:
        """Called after a pop that returned nothing."""

    def interrupted(self, run: RunState) -> None:
        """Called once, when the consumer has stopped, also after an error."""


class Middleware:
    """Hooks around push, process, settle and job. The `after` hooks run in reverse order."""

    def attached(self, worker: "Worker") -> None:
        """Called by `worker.add`."""

    def before_push(self, push: Push) -> None:
        """Called before a push; it may change the push. An exception refuses it."""

    def after_push(self, push: Push) -> None:
        """Called after a push, also if it was refused: `push.error`. Inside a processor, before its
        transaction is committed."""

    def before_process(self, context: Context) -> None:
        """Called before the handler, in its thread. It may raise `Reject` or `Requeue`."""

    def after_process(self, context: Context) -> None:
        """Called after the handler; `context.exception` is set if it raised."""

    def before_settle(self, context: Context) -> None:
        """Called when the outcome is known. It may add operations to `context.session`."""

    def after_settle(self, context: Context, error: BaseException | None) -> None:
        """Called after the message was settled; `error` says why it could not be."""

    def before_job(self, run: "JobRun") -> None:
        """Called when a job was started, before its function, in its thread."""

    def after_job(self, run: "JobRun") -> None:
        """Called when the end of a job was recorded, or could not be; see `run.status`."""


REVERSED = frozenset({"after_push", "after_process", "after_settle", "after_job"})
HOOKS = [name for base in (Extension, Middleware) for name in vars(base) if name[0] != "_"]


class Hooks:
    """The hooks that a worker's extensions and middleware override, by name."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._by_name: dict[str, list[Callable[..., Any]]] = {}
        for name in HOOKS:
            some = [
                getattr(part, name)
                for part in parts
                if getattr(type(part), name, None)
                not in (None, getattr(Extension, name, None), getattr(Middleware, name, None))
            ]
            self._by_name[name] = some[::-1] if name in REVERSED else some

    def call(self, name: str, *args: Any) -> None:
        """Call a hook of every part; what fails is logged. `before_process` may raise a status."""
        for hook in self._by_name[name]:
            try:
                hook(*args)
            except Exception as error:
                if name == "before_process" and isinstance(error, Reject | Requeue):
                    raise
                log.exception(
                    "%s of %r failed; no message is lost by it",
                    name,
                    getattr(hook, "__self__", hook),
                )

    def decide(self, context: Context) -> None:
        """Call `pre_received` until an extension has decided."""
        for hook in self._by_name["pre_received"]:
            if context.decided:
                return
            try:
                hook(context)
            except (Reject, Requeue):
                raise
            except Exception:
                log.exception(
                    "pre_received of %r failed; the message is processed",
                    getattr(hook, "__self__", hook),
                )

    def before_push(self, push: Push) -> None:
        """Call `before_push`; an exception refuses the push."""
        for hook in self._by_name["before_push"]:
            hook(push)
