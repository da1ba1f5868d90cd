-- How many copies for other groups lie ahead of a cursor is kept, not counted: those ever made in the
-- lane, less those that are the group's own or lie behind its cursor.

alter table lane_rows add column copies bigint not null default 0;
alter table cursors add column copies bigint not null default 0;

-- Delayed segments and copies are passed, and counted, without a look at the rows themselves.
drop index odd_segments;
create index odd_segments on segments (lane, first, count, not_before, for_group)
    where not_before is not null or for_group is not null;

-- Delayed messages are woken by the time of each, others by that of their claim.
create index delayed_claims on claim_rows (grp, state, at)
    where state = 1 and redelivered <> 1;

update lane_rows set copies = (select coalesce(sum(count), 0) from segments
    where lane = lane_rows.id and for_group is not null);
update cursors set copies = (select copies from lane_rows where id = cursors.lane)
    - (select coalesce(sum(first + count - greatest(first, cursors.next)), 0) from segments
        where lane = cursors.lane and for_group is not null and for_group <> cursors.grp
        and first + count > cursors.next);

drop view lanes;
create view lanes as
select id, queue, partition, priority, base,
    greatest(head, coalesce((select first + count from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as head,
    greatest(last_at, coalesce((select created_at from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as last_at,
    odd, gone, copies
from lane_rows;

-- How many messages count against max_ack_pending is kept as well.
insert into tallies
select grp, 'in_window', sum(n) from claims where state = 0 and held = 0 group by grp;
