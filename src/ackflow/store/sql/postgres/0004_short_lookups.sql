-- While another session holds an old snapshot, dead versions of rows cannot be removed. What each verb
-- reads must be found without a visit to them.

-- One row for each broker: the number of its last transaction that wrote. The highest of all is the
-- version of what is stored; a broker that finds another version than its own drops its cache. A new
-- number is inserted and the broker's last one deleted, so that the newest entry of the index is live.
-- A row that is still there tells a broker whose commit was not answered that it was done.
alter table writes rename to old_writes;
create table writes (
    n bigint primary key,
    broker bigint not null,
    at timestamptz not null default now(),
    hints bytea                             -- where scans may start; see store/hints.py
);
-- A new number: brokers of older versions look at the schema again, and stop.
insert into writes select n + 1, 0 from old_writes;
insert into writes select row_number() over (order by id) - 1 - (select count(*) from brokers), id, at
from brokers;
drop table old_writes;
drop table brokers;

-- When a cursor was last written, in quarters of a second: its index is read from the newest entry back,
-- and no entry of a version that is older is visited. Most updates leave it as it is and touch no index.
-- An entry that is added to a unique index is first compared with all versions of its row, so there is
-- none: brokers write one at a time, and a cursor is added only where there is none.
alter table cursors add column rev bigint not null default 0;
alter table cursors drop constraint cursors_pkey;
create index cursors_by_key on cursors (lane, grp, rev);
drop index cursors_that_keep;
create index cursors_that_keep on cursors (grp, rev) where keeps = 1;
