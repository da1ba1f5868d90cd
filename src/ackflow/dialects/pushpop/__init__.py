"""PushPop: a priority queue behind one lock per queue, in two forms.

- HTTP: `POST /queue/{queue}/push`, `pop`, `acknowledge`, `extend-lock`, `release` and `deadletter`,
  and `GET /queue/{queue}`; handlers in `http`, request and response bodies in `types`.
- Python: `PushPopActor` with `Push`, `Pop`, `PopWithAck` and `Acknowledge`, in `actor`.

A lock is a lease of an exclusive group. The verbs that address a lease by its lock id are in
`lock`; the error codes are in `errors`.
"""
