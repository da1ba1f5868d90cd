-- Stores counts that were computed before, and removed messages in a table of their own.

drop view lanes;

-- The number of copies for other groups ahead of a cursor is stored: all copies ever made in the lane,
-- minus those that are the group's own or behind its cursor.

alter table lane_rows add column copies integer not null default 0;
alter table cursors add column copies integer not null default 0;

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
    - (select coalesce(sum(first + count - max(first, cursors.next)), 0) from segments
        where lane = cursors.lane and for_group is not null and for_group <> cursors.grp
        and first + count > cursors.next);

-- The number of messages that count against max_ack_pending is stored as well.
insert into tallies
select grp, 'in_window', sum(n) from claims where state = 0 and held = 0 group by grp;

-- Messages removed from a lane above its base have rows of their own: the cost of a delete does not
-- depend on earlier deletes, and segments can be trimmed between segments that are still needed.

create table gone (
    lane integer not null,
    lo integer not null,                    -- first sequence
    hi integer not null,                    -- end, exclusive
    for_group integer,                      -- they were copies for this group only
    primary key (lane, lo)
) without rowid;

-- The packed boundaries are little-endian integers of 4 bytes ('I') or 8.
with recursive
    packed(lane, data, width) as (
        select id, hex(substr(gone, 2)), case substr(gone, 1, 1) when x'49' then 4 else 8 end
        from lane_rows where gone is not null),
    boundary(lane, data, width, at) as (
        select lane, data, width, 0 from packed where data <> ''
        union all
        select lane, data, width, at + 1 from boundary where 2 * width * (at + 1) < length(data)),
    byte(n) as (values (0), (1), (2), (3), (4), (5), (6), (7)),
    number(lane, at, value) as (
        select lane, at, sum((
            (instr('0123456789ABCDEF', substr(data, 2 * (width * at + n) + 1, 1)) - 1) * 16
            + instr('0123456789ABCDEF', substr(data, 2 * (width * at + n) + 2, 1)) - 1) << (8 * n))
        from boundary join byte on n < width group by lane, at)
insert into gone
select a.lane, a.value, b.value, null
from number a join number b on b.lane = a.lane and b.at = a.at + 1 where a.at % 2 = 0;

alter table lane_rows drop column gone;
alter table lane_rows add column gone integer not null default 0;     -- messages removed above the base
alter table lane_rows add column gone_to integer not null default 0;  -- end of the last of them
update lane_rows set
    gone = (select coalesce(sum(hi - lo), 0) from gone where lane = id),
    gone_to = (select coalesce(max(hi), 0) from gone where lane = id);

create view lanes as
select id, queue, partition, priority, base,
    max(head, coalesce((select first + count from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as head,
    max(last_at, coalesce((select created_at from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as last_at,
    odd, copies, gone, gone_to
from lane_rows;

-- The cursors of a new group are created in slices, in the order in which lanes are served: they exist
-- for all lanes up to this one. Null: for all lanes.
alter table groups add column made_priority integer;
alter table groups add column made_lane integer;
create index groups_in_the_making on groups (queue) where made_lane is not null;
create index lanes_in_order on lane_rows (queue, priority, id);

-- Times may have been written while the clock was ahead, before this was detected: upkeep checks them.

insert into meta select 'clock_back', '0 0' where exists (select 1 from segments);
