-- Readers: numbered batches of a Spark query, kept as long as the query may request them again.

create table readers (
    id text primary key,
    grp integer not null,
    manual integer not null,                -- 1: the query settles, the reader only numbers
    epoch integer not null,                 -- raised by each start; an older one is fenced off
    number integer not null,                -- the highest ever given
    seen_at integer not null
) without rowid;
create index readers_of_group on readers (grp);
create index readers_by_time on readers (seen_at);

create table hands (
    reader text not null,
    number integer not null,
    query text,                             -- the query, its batch and its run that read it
    batch integer,
    run text,
    epoch integer not null,                 -- of the reader when it was last handed over
    done integer not null default 0,        -- 1: Spark is done with it, only held messages are left
    primary key (reader, number)
) without rowid;
create index hands_of_batch on hands (query, batch) where query is not null;

create table hand_parts (
    reader text not null,
    number integer not null,
    lane integer not null,
    token integer not null,                 -- of the lease it is, or was last, held under
    lo integer not null,                    -- no segment from here on is trimmed
    hi integer not null,
    ranges blob,                            -- absent while [lo, hi) has no holes
    bad blob,                               -- range set of what the query could not parse
    primary key (reader, number, lane, token)
) without rowid;
create index hand_parts_of_lane on hand_parts (lane, lo);
create index hand_parts_of_token on hand_parts (token);

alter table claims add column held integer not null default 0;  -- 1: leased, not in the window
