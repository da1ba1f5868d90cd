-- Exchanges, bindings, and what AMQP clients declared about queues.

create table exchanges (
    name text collate "C" primary key,
    kind text collate "C" not null,         -- direct, fanout, topic, headers
    durable bigint not null,
    auto_delete bigint not null,            -- deleted with its last binding
    internal bigint not null,               -- clients may not publish to it
    arguments bytea not null                -- msgpack
);

create table bindings (
    source text collate "C" not null,       -- an exchange
    to_exchange bigint not null,            -- 1: the destination is an exchange, 0: a queue
    destination text collate "C" not null,
    routing_key text collate "C" not null,
    arguments bytea not null,               -- msgpack
    primary key (source, to_exchange, destination, routing_key, arguments)
);
create index bindings_by_destination on bindings (to_exchange, destination);

create table declarations (
    queue bigint primary key,
    durable bigint not null,
    auto_delete bigint not null,            -- deleted with its last consumer
    owner text collate "C",                 -- the connection of an exclusive queue
    server text collate "C",                -- the server of that connection
    used_at bigint not null,
    arguments bytea not null                -- msgpack
);

-- Messages with a time to live of their own.
create table expiring (
    lane bigint not null,
    seq bigint not null,
    at bigint not null,
    primary key (lane, seq)
);
create index expiring_by_time on expiring (at);
