"""One stage of a pipeline as a process: `python -m ackflow.pipeline STAGE [NUMBER]`."""

import logging
import os
import sys

import msgspec

from ..errors import AckflowError, InvalidArgument
from .stages import STAGES, Settings, standby, worker
from .supervisor import ERROR_PREFIX, EXIT_NO_RESTART


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stage, number = sys.argv[1], int(sys.argv[2])
    settings = msgspec.json.decode(os.environ["ACKFLOW_PIPELINE"], type=Settings)
    try:
        if stage == "worker":
            worker(settings, number)
        elif stage == "standby":
            standby(settings)
        else:
            STAGES[stage](settings)
    except AckflowError as error:
        print(f"{ERROR_PREFIX}{stage}: {' '.join(error.message.split())}", file=sys.stderr)
        sys.exit(EXIT_NO_RESTART if isinstance(error, InvalidArgument) else 1)


main()
