"""A broker made of brokers: several databases behind the interface of one.

    session, server ── ShardedBroker ── directory: which database has this queue, lease, reader?
                            │
              Database ─ Broker ─ store      one for each database; each knows nothing of the others

Semantics stay in `broker/core`: a call runs unchanged in one database, or in several whose answers are
merged. The facts of `@verb` decide which: queue, lease, reader, and `Several`.
"""
