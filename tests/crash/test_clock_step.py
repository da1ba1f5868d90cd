"""A step of the machine's clock while a real process works."""

import json
import subprocess
import sys
from pathlib import Path


def test_a_process_goes_on_when_its_clock_is_set_back_by_an_hour(tmp_path: Path) -> None:
    script = Path(__file__).with_name("stepping.py")
    run = [sys.executable, str(script), str(tmp_path / "test.db")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert 0.9 < seen["wait"] < 5, "a pop that waits for a second"
    assert seen["upkeep"] == 1, "a lease of a second is taken back by upkeep"
    assert seen["lease"] < 5, "one that opens the file afterwards gets the message"
    assert seen["again"] == 1, "and its lease ends for those that had the file open"
