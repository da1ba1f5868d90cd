"""Queen MQ: partitions with one live lease each, consumer groups, and acknowledgement by name.

Queen has an HTTP interface only: `/api/v1/...`, `/streams/v1/...` and `/health`, in `http`. A
message is addressed by its transaction id and partition, a lease by a UUID. The verbs this needs
on top of the core are in `verbs`.
"""
