-- Schema 13: a new database gets this file, and then the migrations above 13, if there are any.
-- A database of an older version gets the missing migrations. Both ways have the same result
-- (tests/schemas/test_fresh.py).
--
-- Times are microseconds since 1970. Range sets are packed boundaries (ranges.py). Columns named
-- `grp` hold the id of a group.

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

-- A lane is one append-only log: a partition at one priority.
create table lane_rows (
    id integer primary key autoincrement,   -- never reused: it is part of every message id
    queue integer not null,
    partition integer not null,
    priority integer not null,
    base integer not null default 0,        -- the lowest sequence that is still stored
    head integer not null default 0,        -- the next sequence to assign; see the view `lanes`
    last_at integer not null default 0,     -- created_at of the newest message; see the view
    odd integer not null default 0,         -- end of the last delayed or group-only segment
    copies integer not null default 0,      -- messages ever appended for one group only
    gone integer not null default 0,        -- messages removed above the base
    gone_to integer not null default 0,     -- end of the last of them
    unique (partition, priority)
);
create index lanes_of_queue on lane_rows (queue);
create index lanes_in_order on lane_rows (queue, priority, id);

create table segments (
    lane integer not null,
    first integer not null,
    count integer not null,
    created_at integer not null,
    not_before integer,                     -- delayed until this time
    for_group integer,                      -- a copy that is visible to this group only
    carry blob,                             -- msgpack of the counters a copy starts with
    body integer not null,                  -- row in bodies; 0: the payloads are in this row
    bytes integer not null,
    ends blob,
    data blob,
    rest blob,
    primary key (lane, first)
) without rowid;
-- Covers every column that is needed to pass or count delayed and group-only segments.
create index odd_segments on segments (lane, first, count, not_before, for_group)
    where not_before is not null or for_group is not null;

-- The last segment of a lane determines its head, so that a push does not update the lane as well.
-- The columns of lane_rows apply once its segments are removed.
create view lanes as
select id, queue, partition, priority, base,
    max(head, coalesce((select first + count from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as head,
    max(last_at, coalesce((select created_at from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as last_at,
    odd, copies, gone, gone_to
from lane_rows;

create table bodies (
    id integer primary key,
    ends blob not null,                     -- int32 end offsets in data; empty: data is a JSON array
    data blob not null,
    rest blob                               -- msgpack of Rest, when there is any
);

-- Messages removed from a lane above its base.
create table gone (
    lane integer not null,
    lo integer not null,                    -- first sequence
    hi integer not null,                    -- end, exclusive
    for_group integer,                      -- they were copies for this group only
    primary key (lane, lo)
) without rowid;

create table groups (
    id integer primary key autoincrement,
    queue integer not null,
    name text not null,
    created_at integer not null,
    dialect text not null,
    paused integer not null default 0,
    options blob not null,                  -- msgpack of GroupOptions
    made_priority integer,                  -- while cursors are being created, in the order of
    made_lane integer,                      -- lanes_in_order: the last one made. Null: all are made
    unique (queue, name)
);
create index groups_in_the_making on groups (queue) where made_lane is not null;

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
    keeps integer not null default 0,       -- 1: a claim may be stored in the columns below
    kept integer not null default 0,        -- the lease of that claim; 0: no claim is stored
    kept_lo integer,
    kept_hi integer,
    kept_at integer,
    kept_since integer,
    copies integer not null default 0,      -- copies that are the group's or behind the cursor
    primary key (lane, grp)
) without rowid;
create index cursors_with_work on cursors (grp, priority, served) where ready = 1 and blocked = 0;
create index cursors_of_partition on cursors (grp, partition);
-- At most one cursor of a group holds a claim, so that it is found without a scan.
create unique index cursors_that_keep on cursors (grp) where keeps = 1;

create table claim_rows (
    lane integer not null,
    grp integer not null,
    lease integer not null,                 -- 0: not leased
    id integer not null,                    -- random
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
    acked_at integer,                       -- the first ack that the lease's fates do not record
    held integer not null default 0,        -- 1: leased, and not counted against max_ack_pending
    primary key (lane, grp, lease, id)
) without rowid;
create index claims_by_time on claim_rows (grp, state, at);
create index claims_of_lane on claim_rows (lane, grp, state, lo) where lease = 0;
-- Delayed messages become due one by one, others with their whole claim.
create index delayed_claims on claim_rows (grp, state, at)
    where state = 1 and redelivered <> 1;

-- Most claims are of new messages without gaps under a lease. Such a claim is stored in the cursor that
-- was moved past its messages, which saves two page writes for each delivery and each ack.
create view claims as
select lane, grp, lease, id, lo, hi, n, ranges, state, at, since, deliveries, failures, redelivered,
    error, acked_at, held
from claim_rows
union all
select lane, grp, kept, 0, kept_lo, kept_hi, kept_hi - kept_lo, null, 0, kept_at, kept_since, 1, 0, 0,
    null, null, 0
from cursors where keeps = 1 and kept > 0;

create table leases (
    id integer primary key,
    token integer not null,
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
    fates blob                              -- msgpack of [[verb, at, lane, ranges], ...]; empty:
);                                          -- all messages were acked when the lease ended
-- Tokens made by the broker end in the last 24 bits of the lease's id, and need no index.
create unique index leases_by_token on leases (token) where token & 16777215 <> id & 16777215;

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
    updated_at integer not null,
    expires_at integer,                     -- when upkeep looks at it; null: kept until deleted
    lease integer                           -- it ends with the lease of this token
) without rowid;
create index kv_by_end on kv (expires_at) where expires_at is not null;

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

-- Numbered batches of a Spark query, kept as long as the query may request them again.
create table readers (
    id text primary key,
    grp integer not null,
    manual integer not null,                -- 1: the query settles; the reader only assigns numbers
    epoch integer not null,                 -- incremented by each start; older epochs are fenced off
    number integer not null,                -- the highest number assigned
    seen_at integer not null
) without rowid;
create index readers_of_group on readers (grp);
create index readers_by_time on readers (seen_at);

create table hands (
    reader text not null,
    number integer not null,
    query text,                             -- the query, batch and run that have read it
    batch integer,
    run text,
    epoch integer not null,                 -- the reader's epoch at the last delivery
    done integer not null default 0,        -- 1: completed by Spark; only held messages remain
    primary key (reader, number)
) without rowid;
create index hands_of_batch on hands (query, batch) where query is not null;

create table hand_parts (
    reader text not null,
    number integer not null,
    lane integer not null,
    token integer not null,                 -- of the present or last lease
    lo integer not null,                    -- segments from here on are not trimmed
    hi integer not null,
    ranges blob,                            -- null if [lo, hi) has no gaps
    bad blob,                               -- range set of messages that the query could not parse
    primary key (reader, number, lane, token)
) without rowid;
create index hand_parts_of_lane on hand_parts (lane, lo);
create index hand_parts_of_token on hand_parts (token);

create table tokens (
    id integer primary key autoincrement,
    name text not null,
    digest blob not null unique,            -- SHA-256 of the token; the token itself is not stored
    grants text not null,                   -- JSON of [[role, queue pattern], ...]
    created_at integer not null,
    expires_at integer,
    revoked_at integer                      -- kept, so that revoking the last token grants no access
);
create unique index tokens_by_name on tokens (name) where revoked_at is null;

-- Counters of groups and queues that no other row holds.
create table tallies (
    grp integer not null,                   -- a group; negative: a queue; 0: everything deleted
    name text not null,
    n integer not null,
    primary key (grp, name)
) without rowid;

-- Events that consumers record about a message while they work on it.
create table traces (
    id integer primary key autoincrement,
    partition integer not null,
    txid text not null,                     -- of the message
    lane integer not null,
    seq integer not null,
    grp text,                               -- the name of a group, which may be deleted
    consumer text,
    event text not null,
    data blob not null,                     -- JSON
    at integer not null
);
create index traces_of_message on traces (partition, txid, id);
create index traces_by_time on traces (at);

create table trace_names (
    name text not null,
    trace integer not null,
    primary key (name, trace)
) without rowid;
create index names_of_trace on trace_names (trace);

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

-- Counters over time: one row for each queue and block of points (broker/sampling/series.py).
create table series (
    queue integer not null,                 -- 0: all queues
    step integer not null,                  -- seconds between points
    start integer not null,                 -- of the block, in seconds since 1970
    points blob not null,                   -- msgpack
    primary key (queue, step, start)
) without rowid;
create index series_by_time on series (step, start, queue);

-- Changes made by people and programs through the server: administration, not messages.
create table audit (
    id integer primary key autoincrement,
    at integer not null,
    who text not null,                      -- the name of a token; empty: no token was required
    origin text not null,                   -- the address of the client
    action text not null,
    queue text,
    details text not null                   -- JSON
);
