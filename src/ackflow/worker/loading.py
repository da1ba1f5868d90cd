"""Find a worker by its name: `module:worker`."""

import importlib
import os
import sys
import traceback
from pathlib import Path

from ..errors import text_of
from .errors import WorkerNotFound
from .worker import Worker

DEFAULT_NAME = "worker"
PACKAGE = str(Path(__file__).parents[1]) + os.sep


def load_worker(target: str) -> Worker:
    """Import `package.module:name`; the current directory is searched first."""
    module_name, _, name = target.partition(":")
    name = name or DEFAULT_NAME
    if module_name.endswith(".py") or "/" in module_name:
        path = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise WorkerNotFound(
            f"{module_name!r} is a file; name the module instead: ackflow work {path}:{name}"
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (module_name + ".").startswith(missing.name + "."):
            raise WorkerNotFound(
                f"there is no module {missing.name!r}, neither in {here} nor on the Python path"
            ) from None
        raise WorkerNotFound(
            f"module {module_name!r} needs {missing.name!r}, which is not installed "
            f"({_place(missing)})"
        ) from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise WorkerNotFound(
            f"module {module_name!r} cannot be imported: {_said(error)} ({_place(error)})"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            workers = [n for n, value in vars(found).items() if isinstance(value, Worker)]
            known = f"; it has: {', '.join(workers)}" if workers else ""
            raise WorkerNotFound(f"module {module_name!r} has no worker {name!r}{known}")
        found = getattr(found, part)
    if not isinstance(found, Worker):
        kind = type(found).__name__
        raise WorkerNotFound(f"{target!r} is of type {kind}; it must be an ackflow.worker.Worker")
    return found


def _said(error: BaseException) -> str:
    """What an error says, without the place."""
    return f"SyntaxError: {error.msg}" if isinstance(error, SyntaxError) else text_of(error)


def _place(error: BaseException) -> str:
    """The line that raised, of the code that is being imported, or that called Ackflow."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f for f in frames if "importlib" not in f.filename and not f.filename.startswith(PACKAGE)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else "outside of its code"
