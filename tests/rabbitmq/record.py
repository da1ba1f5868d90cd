"""Record the traces of RabbitMQ: python -m tests.rabbitmq.record [SCENARIO ...]"""

import json
import sys
import tempfile
from pathlib import Path

from .real import RabbitMQ
from .scenarios import SCENARIOS, run

TRACES = Path(__file__).parent / "traces.json"


def main() -> None:
    traces = json.loads(TRACES.read_text()) if TRACES.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        real = RabbitMQ(Path(folder))
        try:
            for name in sys.argv[1:] or SCENARIOS:
                traces[name] = run(real.port, name)
                print(name, traces[name], flush=True)
        finally:
            real.stop()
    shown = {name: traces[name] for name in SCENARIOS if name in traces}
    lines = [f"{json.dumps(name)}: {json.dumps(trace)}" for name, trace in shown.items()]
    TRACES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
