-- Readers: numbered batches of a Spark query, kept as long as the query may request them again.

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

alter table claims add column held integer not null default 0;  -- 1: leased, and not counted against max_ack_pending
