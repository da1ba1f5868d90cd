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
