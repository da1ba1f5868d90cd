-- While another session holds an old snapshot, dead row versions cannot be removed. The lookups of verbs
-- must not visit them.

-- One row for each broker: the number of its last transaction that wrote. The highest number is the
-- version of the stored data; a broker that finds another version than its own clears its cache. A new
-- row is inserted and the broker's last one deleted, so that the newest index entry is always live.
-- The row also shows whether a transaction was committed when the connection was lost.
alter table writes rename to old_writes;
create table writes (
    n bigint primary key,
    broker bigint not null,
    at timestamptz not null default now(),
    hints bytea                             -- where index scans may start; see store/hints.py
);
-- A new number makes brokers of older versions check the schema again, and stop.
insert into writes select n + 1, 0 from old_writes;
insert into writes select row_number() over (order by id) - 1 - (select count(*) from brokers), id, at
from brokers;
drop table old_writes;
drop table brokers;

-- The time of the last update of a cursor, in quarters of a second. A backward index scan finds the
-- newest version first and visits no older one. Most updates do not change the time and update no index.
-- A unique index would check each new entry against all versions of its row, so the index is not unique:
-- brokers write one at a time, and a cursor is added only where there is none.
alter table cursors add column rev bigint not null default 0;
alter table cursors drop constraint cursors_pkey;
create index cursors_by_key on cursors (lane, grp, rev);
drop index cursors_that_keep;
create index cursors_that_keep on cursors (grp, rev) where keeps = 1;
