-- Where a lane ends is told by its last segment: a push need not write it down a second time. What
-- is written in the lane counts once its segments are gone.

alter table lanes rename to lane_rows;

create view lanes as
select id, queue, partition, priority, base,
    max(head, coalesce((select first + count from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as head,
    max(last_at, coalesce((select created_at from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as last_at,
    odd, gone
from lane_rows;
