"""Makes a backup while trace.c records it. Usage: traced_backup.py DATABASE TARGET."""

import sys

from traced import note

import ackflow

MESSAGES = 20

if __name__ == "__main__":
    with ackflow.connect(sys.argv[1]) as q:
        q.push("jobs", list(range(MESSAGES)))
        q.backup(sys.argv[2])
        note("backup", "ends", [])
        q.push("jobs", "later")
