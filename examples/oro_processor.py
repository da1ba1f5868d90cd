"""A processor that changes the status of an entity: found, gone, and an invalid message.

    python examples/oro_processor.py            # three messages, their three outcomes
    ackflow work oro_processor:worker           # the same as a consumer, in this folder

The database of the queue is ENTITIES_QUEUE (queue.db), that of the entities ENTITIES (entities.db).
"""

import logging
import os
import sqlite3
import time
from contextlib import closing

from ackflow import Message
from ackflow.worker import ACK, REJECT, ProcessorSession, Status, Worker

logger = logging.getLogger("entities")
worker = Worker(os.environ.get("ENTITIES_QUEUE", "queue.db"), lease_seconds=2, redelivery_delay=1)


def entities() -> sqlite3.Connection:
    connection = sqlite3.connect(os.environ.get("ENTITIES", "entities.db"), isolation_level=None)
    connection.execute("create table if not exists entity (id integer primary key, status text)")
    return connection


@worker.processor("entities")
class ChangeStatus:
    """Find an entity by the id of the message, and change its status."""

    def process(self, message: Message, session: ProcessorSession) -> Status:
        body = message.data
        if not isinstance(body, dict) or body.get("id") is None:
            logger.critical(
                'Got invalid message, id is empty: "%s"',
                message.raw.decode(),
                extra={"message_id": message.id},
            )
            return REJECT
        with closing(entities()) as connection:
            found = connection.execute("select 1 from entity where id = ?", (body["id"],))
            if found.fetchone() is None:
                logger.error(
                    'Cannot find an entity with id: "%s"',
                    body["id"],
                    extra={"message_id": message.id},
                )
                return REJECT
            time.sleep(float(body.get("seconds", 0)))
            connection.execute("update entity set status = 'success' where id = ?", (body["id"],))
        session.push("changed", body["id"])
        return ACK


def main() -> None:
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    with closing(entities()) as connection:
        connection.execute("insert or ignore into entity values (1, 'new')")
    worker.push("entities", {"id": 1})
    worker.push("entities", {"id": 2})
    worker.push("entities", {"name": "no id"})
    counts = worker.run(message_limit=3)
    print(f"{counts.acked} acknowledged, {counts.rejected} rejected")
    worker.close()


if __name__ == "__main__":
    main()
