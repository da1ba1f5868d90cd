-- Seek, purge and delete are done in slices.

-- A seek, purge or delete that is not done in one transaction. What it covers is decided when its row
-- is added; it is applied to each lane before the lane is read or changed (broker/core/upkeep/sweeps.py).
create table sweeps (
    id integer primary key autoincrement,
    kind text not null,                     -- seek, start, purge, queue or group
    queue integer not null,
    grp integer,
    partition integer,                      -- null: all partitions of the queue
    target text not null,                   -- JSON of where a group is moved to
    queue_name text not null,
    group_name text,
    upto integer not null,                  -- lanes up to this one are covered, later ones are new
    after integer not null default 0,       -- it is applied to lanes up to this one
    phase integer not null default 0,       -- of a delete: which rows are removed at present
    lanes integer not null,                 -- the number of lanes covered, and of those done
    done integer not null default 0,
    n integer not null default 0,           -- messages purged
    started_at integer not null,
    ended_at integer
);

-- Lanes after `after` to which a sweep is applied, because they were used.
create table swept (
    sweep integer not null,
    lane integer not null,
    primary key (sweep, lane)
) without rowid;

-- Lanes with segments below their base that are still to be removed.
create table cut_lanes (
    lane integer primary key,
    stop integer not null                   -- end, exclusive
);

-- Keyed values that end: at a time, or with a lease.
alter table kv add column expires_at integer;
alter table kv add column lease integer;
create index kv_by_end on kv (expires_at) where expires_at is not null;

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
