-- Exchanges, bindings, and what AMQP clients declared about queues.

create table exchanges (
    name text primary key,
    kind text not null,                     -- direct, fanout, topic, headers
    durable integer not null,
    auto_delete integer not null,           -- deleted with its last binding
    internal integer not null,              -- clients may not publish to it
    arguments blob not null                 -- msgpack
) without rowid;

create table bindings (
    source text not null,                   -- an exchange
    to_exchange integer not null,           -- 1: the destination is an exchange, 0: a queue
    destination text not null,
    routing_key text not null,
    arguments blob not null,                -- msgpack
    primary key (source, to_exchange, destination, routing_key, arguments)
) without rowid;
create index bindings_by_destination on bindings (to_exchange, destination);

create table declarations (
    queue integer primary key,
    durable integer not null,
    auto_delete integer not null,           -- deleted with its last consumer
    owner text,                             -- the connection of an exclusive queue
    server text,                            -- the server of that connection
    used_at integer not null,
    arguments blob not null                 -- msgpack
);

-- Messages with a time to live of their own.
create table expiring (
    lane integer not null,
    seq integer not null,
    at integer not null,
    primary key (lane, seq)
) without rowid;
create index expiring_by_time on expiring (at);
