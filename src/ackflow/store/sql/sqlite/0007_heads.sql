-- The last segment of a lane determines its head, so that a push does not update the lane as well. The
-- columns of the lane apply once its segments are removed.

alter table lanes rename to lane_rows;

create view lanes as
select id, queue, partition, priority, base,
    max(head, coalesce((select first + count from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as head,
    max(last_at, coalesce((select created_at from segments where lane = lane_rows.id
        order by first desc limit 1), 0)) as last_at,
    odd, gone
from lane_rows;
