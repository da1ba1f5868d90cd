-- Stores counts that were computed before, and removed messages in a table of their own.

drop view lanes;

-- The number of copies for other groups ahead of a cursor is stored: all copies ever made in the lane,
-- minus those that are the group's own or behind its cursor.

alter table lane_rows add column copies bigint not null default 0;
alter table cursors add column copies bigint not null default 0;

-- Covers every column that is needed to pass or count delayed segments and copies.
drop index odd_segments;
create index odd_segments on segments (lane, first, count, not_before, for_group)
    where not_before is not null or for_group is not null;

-- Delayed messages become due one by one, others with their whole claim.
create index delayed_claims on claim_rows (grp, state, at)
    where state = 1 and redelivered <> 1;

update lane_rows set copies = (select coalesce(sum(count), 0) from segments
    where lane = lane_rows.id and for_group is not null);
update cursors set copies = (select copies from lane_rows where id = cursors.lane)
    - (select coalesce(sum(first + count - greatest(first, cursors.next)), 0) from segments
        where lane = cursors.lane and for_group is not null and for_group <> cursors.grp
        and first + count > cursors.next);

-- The number of messages that count against max_ack_pending is stored as well.
insert into tallies
select grp, 'in_window', sum(n) from claims where state = 0 and held = 0 group by grp;

-- Messages removed from a lane above its base have rows of their own: the cost of a delete does not
-- depend on earlier deletes, and segments can be trimmed between segments that are still needed.

create table gone (
    lane bigint not null,
    lo bigint not null,                     -- first sequence
    hi bigint not null,                     -- end, exclusive
    for_group bigint,                       -- they were copies for this group only
    primary key (lane, lo)
);

-- The packed boundaries are little-endian integers of 4 bytes ('I') or 8.
with packed as (
        select id as lane, gone as data, case get_byte(gone, 0) when 73 then 4 else 8 end as width
        from lane_rows where gone is not null),
    number as (
        select lane, at, sum(get_byte(data, 1 + width * at + n)::bigint << (8 * n))::bigint as value
        from packed, generate_series(0, (length(data) - 1) / width - 1) as at,
            generate_series(0, width - 1) as n
        group by lane, at)
insert into gone
select a.lane, a.value, b.value, null
from number a join number b on b.lane = a.lane and b.at = a.at + 1 where a.at % 2 = 0;

alter table lane_rows drop column gone;
alter table lane_rows add column gone bigint not null default 0;     -- messages removed above the base
alter table lane_rows add column gone_to bigint not null default 0;  -- end of the last of them
update lane_rows set
    gone = (select coalesce(sum(hi - lo), 0) from gone g where g.lane = id),
    gone_to = (select coalesce(max(hi), 0) from gone g where g.lane = id);

create view lanes as
select id, queue, partition, priority, base,
    greatest(head, coalesce((select first + count from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as head,
    greatest(last_at, coalesce((select created_at from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as last_at,
    odd, copies, gone, gone_to
from lane_rows;

-- The cursors of a new group are created in slices, in the order in which lanes are served: they exist
-- for all lanes up to this one. Null: for all lanes.
alter table groups add column made_priority bigint;
alter table groups add column made_lane bigint;
create index groups_in_the_making on groups (queue) where made_lane is not null;
create index lanes_in_order on lane_rows (queue, priority, id);

-- Times may have been written while the clock was ahead, before this was detected: upkeep checks them.

insert into meta select 'clock_back', '0 0' where exists (select 1 from segments)
on conflict (key) do nothing;
