-- The first schema. Times are microseconds since 1970. Range sets are packed boundaries (ranges.py).

create table meta (key text primary key, value) without rowid;

create table queues (
    id integer primary key autoincrement,
    name text not null unique,
    created_at integer not null,
    paused integer not null default 0,
    options blob not null                   -- msgpack of QueueOptions
);

create table partitions (
    id integer primary key autoincrement,
    queue integer not null,
    name text not null,
    created_at integer not null,
    unique (queue, name)
);

create table lanes (
    id integer primary key autoincrement,   -- never reused: it is part of every message id
    queue integer not null,
    partition integer not null,
    priority integer not null,
    base integer not null default 0,        -- the lowest sequence that is still stored
    head integer not null default 0,        -- the next sequence to assign
    last_at integer not null default 0,     -- created_at of the newest message
    odd integer not null default 0,         -- end of the last delayed or group-only segment
    gone blob,                              -- range set of single deleted messages
    unique (partition, priority)
);
create index lanes_of_queue on lanes (queue);

create table segments (
    lane integer not null,
    first integer not null,
    count integer not null,
    created_at integer not null,
    not_before integer,                     -- delayed until this time
    for_group integer,                      -- a copy that is visible to this group only
    carry blob,                             -- msgpack of the counters a copy starts with
    body integer not null,
    bytes integer not null,
    primary key (lane, first)
) without rowid;
create index odd_segments on segments (lane, first)
    where not_before is not null or for_group is not null;

create table bodies (
    id integer primary key,
    ends blob not null,                     -- int32 end offset of each payload in data
    data blob not null,
    rest blob                               -- msgpack of Rest, when there is any
);

create table groups (
    id integer primary key autoincrement,
    queue integer not null,
    name text not null,
    created_at integer not null,
    dialect text not null,
    paused integer not null default 0,
    options blob not null,                  -- msgpack of GroupOptions
    unique (queue, name)
);

create table cursors (
    lane integer not null,
    grp integer not null,
    partition integer not null,
    priority integer not null,
    next integer not null,                  -- the next sequence that was never read
    served integer not null default 0,      -- when the lane was last served
    ready integer not null default 0,       -- may have messages to deliver
    blocked integer not null default 0,     -- ordered group with a live lease in the partition
    delivered integer not null default 0,   -- total deliveries
    consumed integer not null default 0,    -- total acks
    failed integer not null default 0,      -- total nacks
    done integer not null default 0,        -- done + dead + skipped + purged + expired + hidden
    dead integer not null default 0,        --   + claimed messages = next
    skipped integer not null default 0,
    purged integer not null default 0,
    expired integer not null default 0,
    hidden integer not null default 0,      -- copies for other groups
    last_seq integer,
    last_created integer,
    last_at integer,
    primary key (lane, grp)
) without rowid;
create index cursors_with_work on cursors (grp, priority, served) where ready = 1 and blocked = 0;
create index cursors_of_partition on cursors (grp, partition);

create table claims (
    id integer primary key,
    grp integer not null,
    lane integer not null,
    lo integer not null,                    -- first sequence
    hi integer not null,                    -- end, exclusive
    n integer not null,
    ranges blob,                            -- null if [lo, hi) has no gaps
    state integer not null,                 -- 0 leased -> 1 waiting -> 2 due -> 0 leased
    at integer,                             -- when the lease expires or the claim is due
    since integer not null,                 -- start of the waiting time: created_at or not_before
    deliveries integer not null,
    failures integer not null,
    redelivered integer not null,
    error text,
    lease integer,
    acked_at integer                        -- the first ack that the lease's fates do not record
);
create index claims_by_time on claims (grp, state, at);
create index claims_of_lane on claims (lane, grp, state, lo) where lease is null;
create index claims_leased on claims (lane, grp, lease) where lease is not null;

create table leases (
    id integer primary key,
    token integer not null unique,
    grp integer not null,
    consumer text not null,
    acquired_at integer not null,
    expires_at integer not null,
    ended_at integer,
    n integer not null,
    lane integer,                           -- of a delivery from one lane without gaps,
    lo integer,                             -- otherwise null, and `parts` is set
    hi integer,
    number integer,                         -- earlier deliveries from the lane to the group
    parts blob,                             -- msgpack of [[lane, ranges, number], ...]
    fates blob                              -- msgpack of [[verb, at, lane, ranges], ...]
);

create table dead (
    id integer primary key autoincrement,
    queue integer not null,
    grp integer not null,
    lane integer not null,
    seq integer not null,
    kind text not null,
    reason text,
    error text,                             -- of the last failure before that
    deliveries integer not null,
    failures integer not null,
    created_at integer not null,
    died_at integer not null,
    consumer text,
    counted integer not null default 1,     -- 0: the group was moved back to before this message
    payload blob not null,
    rest blob,                              -- msgpack of Rest of this one message
    unique (grp, lane, seq)
);
create index dead_of_queue on dead (queue, id);

create table keys (
    key text primary key,
    digest blob not null,
    answer blob not null,
    at integer not null
) without rowid;
create index keys_by_time on keys (at);

create table txids (
    partition integer not null,
    txid text not null,
    lane integer not null,
    seq integer not null,
    at integer,                             -- null: kept as long as the message is
    primary key (partition, txid)
) without rowid;
create index txids_by_time on txids (at) where at is not null;

create table kv (
    key text primary key,
    value blob not null,
    version integer not null,
    updated_at integer not null
) without rowid;

create table stages (
    stage text not null,
    piece integer not null,
    producer text not null,
    batch integer not null,
    queue text not null,
    partition text not null,
    priority integer not null,
    delay integer,
    count integer not null,
    bytes integer not null,
    body integer not null,
    created_at integer not null,
    primary key (stage, piece)
) without rowid;
create index stages_of_producer on stages (producer, batch);
create index stages_by_time on stages (created_at);

create table producers (
    producer text primary key,
    batch integer not null,
    answer blob,
    at integer not null
) without rowid;
