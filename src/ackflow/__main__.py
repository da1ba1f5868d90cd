"""`ackflow` and `python -m ackflow`: runs the command line, or reports how to install it."""

import sys


def main() -> None:
    try:
        from .cli.main import main as run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("ackflow"):
            raise
        print(
            f"ackflow: the command line needs more: pip install ackflow[cli,client] "
            f"({missing.name} is missing)",
            file=sys.stderr,
        )
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
