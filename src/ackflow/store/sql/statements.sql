-- The named statements that all stores share; <dialect>/statements.sql has those of one store.
-- For PostgreSQL, ?1 becomes $1, and its type is inferred from the context of its first use.

-- name: get_meta
select value from meta where key = ?1
-- name: put_meta
insert into meta values (?1, ?2) on conflict (key) do update set value = excluded.value

-- name: meta_between
select key, value from meta where key >= ?1 and key < ?2 order by key limit ?3
-- name: drop_meta
delete from meta where key = ?1

-- name: add_access_token
insert into tokens (name, digest, grants, created_at, expires_at) values (?1, ?2, ?3, ?4, ?5)
-- name: access_tokens
select id, name, digest, grants, created_at, expires_at, revoked_at from tokens order by id
-- name: revoke_access_token
update tokens set revoked_at = ?2 where name = ?1 and revoked_at is null returning id
-- name: drop_access_tokens
delete from tokens returning id

-- name: add_tally
insert into tallies values (?1, ?2, ?3) on conflict (grp, name) do update set n = tallies.n + excluded.n
-- name: put_tally
insert into tallies values (?1, ?2, ?3) on conflict (grp, name) do update set n = excluded.n
-- name: tally
select n from tallies where grp = ?1 and name = ?2
-- name: tallies
select grp, name, n from tallies
-- name: keep_tallies_of_group
insert into tallies select 0, name, n from tallies where grp = ?1 and name <> 'in_window'
on conflict (grp, name) do update set n = tallies.n + excluded.n
-- name: drop_tallies
delete from tallies where grp = ?1
-- name: pushed_figures
select q.id, q.name, coalesce(sum(l.head), 0), coalesce(sum(l.head - l.base - l.gone), 0), q.paused
from queues q left join lanes l on l.queue = q.id group by q.id order by q.name
-- name: group_figures
select g.id, g.queue, g.name, coalesce(sum(c.delivered), 0), coalesce(sum(c.consumed), 0),
    coalesce(sum(c.failed), 0), coalesce(sum(c.dead), 0),
    coalesce(sum(case when l.gone_to <= c.next then l.head - c.next end), 0)
from groups g left join cursors c on c.grp = g.id left join lanes l on l.id = c.lane
group by g.id order by g.name
-- name: odd_figures
select grp, coalesce(sum(case when other then n end), 0),
    coalesce(sum(case when not other and not_before > ?1 then n end), 0)
from (select c.grp as grp, s.for_group is not null and s.for_group <> c.grp as other, s.not_before,
        s.first + s.count - case when s.first > c.next then s.first else c.next end as n
    from cursors c join lanes l on l.id = c.lane and l.odd > c.next and l.gone_to <= c.next
    join segments s on s.lane = c.lane and s.first + s.count > c.next and s.first >=
        coalesce((select max(first) from segments where lane = c.lane and first <= c.next), 0)
    where s.not_before is not null or s.for_group is not null) as odd
group by grp
-- name: claim_figures
select grp, case when state = 1 and at <= ?1 then 2 else state end as now_state, sum(n), min(since)
from claims group by grp, now_state
-- name: cursors_with_gone
select c.grp, c.lane, c.next from cursors c join lanes l on l.id = c.lane
where l.gone_to > c.next and l.head > c.next
-- name: oldest_figures
select c.grp, min((select s.created_at from segments s where s.lane = c.lane and s.first >=
        coalesce((select max(first) from segments where lane = c.lane and first <= c.next), 0)
    and (s.not_before is null or s.not_before <= ?1)
    and (s.for_group is null or s.for_group = c.grp) order by s.first limit 1))
from cursors c join lanes l on l.id = c.lane where l.head > c.next group by c.grp

-- name: cursors_page
select distinct partition from cursors where grp = ?1 and partition > ?2 order by partition limit ?3
-- name: paused_groups
select id from groups where paused = 1
-- name: series_block
select points from series where queue = ?1 and step = ?2 and start = ?3
-- name: put_series_block
insert into series values (?1, ?2, ?3, ?4)
on conflict (queue, step, start) do update set points = excluded.points
-- name: series_of
select start, points from series where queue = ?1 and step = ?2 and start >= ?3 and start <= ?4
order by start
-- name: count_series
select count(*) from series
-- name: drop_series
delete from series where (queue, step, start) in (select queue, step, start from series
    where step = ?1 and start < ?2 and queue >= ?3 order by start limit ?4) returning queue
-- name: add_audit
insert into audit (at, who, origin, action, queue, details) values (?1, ?2, ?3, ?4, ?5, ?6)
-- name: audit_page
select id, at, who, origin, action, queue, details from audit where id < ?1 order by id desc limit ?2
-- name: drop_audit
delete from audit where id in (select id from audit where at < ?1 or id <= ?2 order by id limit ?3)
returning id

-- name: queue_named
select id, name, created_at, paused, options from queues where name = ?1
-- name: queue_by_id
select id, name, created_at, paused, options from queues where id = ?1
-- name: all_queues
select id, name, created_at, paused, options from queues order by name
-- name: queue_ids
select id from queues order by id
-- name: add_queue
insert into queues (name, created_at, options) values (?1, ?2, ?3)
-- name: save_queue
update queues set paused = ?2, options = ?3 where id = ?1
-- name: drop_queue
delete from queues where id = ?1

-- name: partition_named
select id, queue, name, created_at from partitions where queue = ?1 and name = ?2
-- name: partition_by_id
select id, queue, name, created_at from partitions where id = ?1
-- name: partitions_of
select id, queue, name, created_at from partitions where queue = ?1 and id > ?2 order by id limit ?3
-- name: add_partition
insert into partitions (queue, name, created_at) values (?1, ?2, ?3)
-- name: first_partition
select id from partitions where queue = ?1 order by name limit 1
-- name: drop_partition
delete from partitions where id = ?1

-- name: lane_of
select id, queue, partition, priority, base, head, last_at, odd, copies, gone, gone_to from lanes
where partition = ?1 and priority = ?2
-- name: lane_by_id
select id, queue, partition, priority, base, head, last_at, odd, copies, gone, gone_to from lanes where id = ?1
-- name: lanes_of_queue
select id, queue, partition, priority, base, head, last_at, odd, copies, gone, gone_to from lanes where queue = ?1
order by id
-- name: lanes_of_partition
select id, queue, partition, priority, base, head, last_at, odd, copies, gone, gone_to from lanes where partition = ?1
order by priority
-- name: lane_ids_in
select id from lane_rows where partition = ?1 order by priority
-- name: lanes_after
select id, queue, partition, priority, base, head, last_at, odd, copies, gone, gone_to from lanes
where queue = ?1 and id >= ?2 order by id limit ?3
-- name: add_lane
insert into lane_rows (queue, partition, priority) values (?1, ?2, ?3)
-- name: save_lane
update lane_rows set base = ?2, head = ?3, last_at = ?4, gone = ?5, gone_to = ?6 where id = ?1
-- name: note_odd
update lane_rows set odd = ?2, copies = ?3 where id = ?1
-- name: gone_near
select lo, hi, for_group from gone where lane = ?1 and lo <= ?3 and hi >= ?2
    and lo >= coalesce((select max(lo) from gone where lane = ?1 and lo <= ?2), ?2) order by lo
-- name: gone_of_lane
select lo, hi, for_group from gone where lane = ?1 order by lo
-- name: gone_after
select coalesce(sum(case when lo < ?2 then hi - ?2 else hi - lo end), 0) from gone
where lane = ?1 and hi > ?2
    and lo >= coalesce((select max(lo) from gone where lane = ?1 and lo <= ?2), ?2)
-- name: add_gone
insert into gone values (?1, ?2, ?3, ?4)
-- name: drop_gone
delete from gone where lane = ?1 and lo = ?2
-- name: drop_gone_below
delete from gone where lane = ?1 and lo < ?2
-- name: drop_gone_of_lane
delete from gone where lane = ?1 and lo in (select lo from gone where lane = ?1 limit ?2)
returning lo
-- name: first_lane
select id, head from lanes where queue = ?1 and id > ?2 order by id limit 1
-- name: drop_lane
delete from lane_rows where id = ?1
-- name: last_lane
select max(id) from lane_rows
-- name: count_lanes
select count(*) from lane_rows where queue = ?1
-- name: count_lanes_of_partition
select count(*) from lane_rows where partition = ?1
-- name: count_read_partitions
select count(distinct partition) from lane_rows where queue = ?1
-- name: lanes_between
select id from lane_rows where queue = ?1 and id > ?2 and id <= ?3 order by id limit ?4
-- name: partition_between
select id from lane_rows where partition = ?1 and id > ?2 and id <= ?3 order by id limit ?4

-- name: add_body
insert into bodies (ends, data, rest) values (?1, ?2, ?3)
-- name: body
select ends, data, rest from bodies where id = ?1
-- name: drop_body
delete from bodies where id = ?1

-- name: add_segment
insert into segments values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
-- name: segments_from
select lane, first, count, created_at, not_before, for_group, carry, body, bytes, ends, data, rest
from segments
where lane = ?1
  and first >= coalesce((select max(first) from segments where lane = ?1 and first <= ?2), ?2)
order by first limit ?3
-- name: headers_from
select lane, first, count, created_at, not_before, for_group, carry, body, bytes from segments
where lane = ?1
  and first >= coalesce((select max(first) from segments where lane = ?1 and first <= ?2), ?2)
order by first limit ?3
-- name: first_segment
select min(first) from segments where lane = ?1 and first >= ?2
-- name: segments_before
select lane, first, count, created_at, not_before, for_group, carry, body, bytes from segments
where lane = ?1 and first < ?2 and first >= ?4 order by first desc limit ?3
-- name: pushed_by_time
select created_at / ?4, sum(count) from segments s join lane_rows l on l.id = s.lane
where l.queue = ?1 and s.first >= l.base and s.created_at >= ?2 and s.created_at < ?3
group by 1 order by 1
-- name: pushed_since
select coalesce(sum(count), 0) from segments s join lanes l on l.id = s.lane
where l.queue = ?1 and l.last_at >= ?2 and s.first >= l.base and s.created_at >= ?2
-- name: small_body
select ends, data, rest from segments where lane = ?1 and first = ?2
-- name: body_rest
select rest from bodies where id = ?1
-- name: created_at
select created_at from segments where lane = ?1 and first <= ?2 order by first desc limit 1
-- name: segment_since
select first from segments where lane = ?1 and first >= ?3 and created_at >= ?2 order by first limit 1
-- name: odd_segments
select first, count, not_before, for_group from segments
where lane = ?1 and (not_before is not null or for_group is not null)
  and first >= coalesce((select max(first) from segments where lane = ?1 and first <= ?2), ?2)
order by first limit ?3
-- name: odd_run
select count(*), sum(count), max(first + count), min(not_before), count(not_before),
    count(for_group), count(case when for_group = ?4 then 1 end)
from (select first, count, not_before, for_group from segments
    where lane = ?1 and (not_before is not null or for_group is not null) and first >= ?2
    order by first limit ?3) as run
-- name: queue_totals
select coalesce(sum(head), 0), coalesce(sum(head - base - gone), 0) from lanes where queue = ?1
-- name: queue_left
select coalesce(sum(head - base - gone), 0), coalesce(sum(head - coalesce(low, head)), 0)
from (select head, base, gone, (select min(c.next) from cursors c where c.lane = lanes.id
    and c.grp in (select id from groups where queue = ?1)) as low from lanes where queue = ?1) as lane
-- name: odd_lanes
select id from lane_rows where queue = ?1 and (gone > 0 or odd > base)
-- name: partition_page
select id, queue, name, created_at from partitions where queue = ?1 order by id limit ?2 offset ?3
-- name: queue_bytes
select coalesce(sum(s.bytes), 0) from segments s join lane_rows l on l.id = s.lane
where l.queue = ?1 and s.first >= l.base
-- name: uneven_lanes
select l.id from lane_rows l join cursors c on c.lane = l.id and c.grp = ?2
where l.queue = ?1 and (l.odd > 0 or l.gone_to > 0) and (l.odd > c.next or l.gone_to > c.next)
-- name: group_totals
select coalesce(sum(next), 0), coalesce(sum(delivered), 0), coalesce(sum(consumed), 0),
    coalesce(sum(failed), 0), coalesce(sum(done), 0), coalesce(sum(dead), 0),
    coalesce(sum(skipped), 0), coalesce(sum(purged), 0), coalesce(sum(expired), 0),
    min((select case when first + count > c.next then created_at end from segments s
        where s.lane = c.lane and s.first <= c.next and c.lane not in
            (select l.id from lane_rows l join cursors k on k.lane = l.id and k.grp = ?1
            where l.queue = ?2 and (l.odd > 0 or l.gone_to > 0)
                and (l.odd > k.next or l.gone_to > k.next))
        order by first desc limit 1))
from cursors c where grp = ?1
-- name: group_behind
select count(*), coalesce(min(n), 0), coalesce(max(n), 0), coalesce(sum(n), 0)
from (select l.head - c.next as n from cursors c join lanes l on l.id = c.lane where c.grp = ?1)
    as behind
-- name: group_consumed
select coalesce(sum(consumed), 0) from cursors where grp = ?1
-- name: group_claims
select case when state = 1 and at <= ?2 then 2 else state end as now_state, sum(n),
    min((select created_at from segments s where s.lane = c.lane and s.first <= c.lo
        order by first desc limit 1))
from claims c where grp = ?1 group by now_state
-- Lanes with other messages for the group than the heads tell are left out.
-- name: unsettled_partitions
select count(distinct c.partition) from cursors c join lanes l on l.id = c.lane
where c.grp = ?1 and (c.next < l.head or exists
    (select 1 from claims k where k.lane = c.lane and k.grp = c.grp))
and c.partition not in (select u.partition from lane_rows u join cursors k on k.lane = u.id and k.grp = ?1
    where u.queue = ?2 and (u.odd > 0 or u.gone_to > 0) and (u.odd > k.next or u.gone_to > k.next))
-- name: late_partitions
select partition, min(oldest) from (
    select c.partition, coalesce((select s.created_at from segments s
        where s.lane = c.lane and s.first <= c.next order by s.first desc limit 1), 0) as oldest
    from cursors c join lanes l on l.id = c.lane where c.grp = ?1 and c.next < l.head
    union all
    select l.partition, coalesce((select s.created_at from segments s
        where s.lane = k.lane and s.first <= k.lo order by s.first desc limit 1), 0) as oldest
    from claims k join lanes l on l.id = k.lane where k.grp = ?1) as waiting
where oldest <= ?2 group by partition order by 2, 1 limit ?3
-- name: count_partitions
select count(*) from partitions where queue = ?1
-- name: lane_totals
select count(*), coalesce(sum(count), 0), coalesce(sum(bytes), 0) from segments
where lane = ?1 and first >= ?2
-- name: drop_segment
delete from segments where lane = ?1 and first = ?2
-- name: segments_below
select first, count, body, bytes from segments where lane = ?1 and first < ?2 order by first limit ?3
-- name: drop_segments_below
delete from segments where lane = ?1 and first < ?2

-- name: group_named
select id, queue, name, created_at, dialect, paused, options, made_priority, made_lane from groups
where queue = ?1 and name = ?2
-- name: group_by_id
select id, queue, name, created_at, dialect, paused, options, made_priority, made_lane from groups
where id = ?1
-- name: group_homes
select id, queue from groups
-- name: groups_of
select id, queue, name, created_at, dialect, paused, options, made_priority, made_lane from groups
where queue = ?1 order by name
-- name: add_group
insert into groups (queue, name, created_at, dialect, options) values (?1, ?2, ?3, ?4, ?5)
-- name: groups_in_the_making
select id from groups where made_lane is not null order by id
-- name: making_of_queue
select id from groups where queue = ?1 and made_lane is not null
-- name: save_making
update groups set made_priority = ?2, made_lane = ?3 where id = ?1
-- name: slice_end
select priority, id from lane_rows where queue = ?1 and (priority, id) > (?2, ?3)
order by priority, id limit 1 offset ?4
-- name: make_cursors
insert into cursors (lane, grp, partition, priority, next, ready, blocked, skipped, hidden,
    copies)
select id, ?1, partition, priority, start, case when start < head then 1 else 0 end,
    case when ?8 = 1 and exists (select 1 from cursors k
        where k.grp = ?1 and k.partition = made.partition and k.blocked = 1) then 1 else 0 end,
    start - hidden, hidden, copies - ahead
from (select begun.*, case when odd <= base or start <= base then 0 else
        (select coalesce(sum(count), 0) from segments s where s.lane = begun.id
            and s.for_group is not null and s.for_group <> ?1 and s.first < begun.start)
        + (select coalesce(sum(hi - lo), 0) from gone g where g.lane = begun.id
            and g.for_group is not null and g.for_group <> ?1 and g.hi <= begun.start)
        end as hidden,
        case when odd <= start then 0 else
        (select coalesce(sum(count), 0) from segments s where s.lane = begun.id
            and s.for_group is not null and s.for_group <> ?1 and s.first >= begun.start)
        + (select coalesce(sum(hi - lo), 0) from gone g where g.lane = begun.id
            and g.for_group is not null and g.for_group <> ?1 and g.lo >= begun.start)
        end as ahead
    from (select l.*, case when ?6 = 'all' then base when ?6 = 'new' then head else
            coalesce((select first from segments s where s.lane = l.id and s.first >= l.base
                and s.created_at >= ?7 order by first limit 1), head) end as start
        from (select * from lanes where queue = ?2 and (priority, id) > (?3, ?4)
            order by priority, id limit ?5) as l) as begun) as made
where not exists (select 1 from cursors k where k.lane = made.id and k.grp = ?1)
-- name: save_group
update groups set paused = ?2, options = ?3, dialect = ?4 where id = ?1
-- name: decide_group
update groups set name = ?2, created_at = ?3, dialect = ?4, options = ?5 where id = ?1
-- name: drop_group
delete from groups where id = ?1

-- name: cursor
select lane, grp, partition, priority, next, served, ready, blocked, delivered, consumed, failed,
    done, dead, skipped, purged, expired, hidden, copies, last_seq, last_created, last_at, keeps,
    kept
from cursors where lane = ?1 and grp = ?2
-- name: cursors_of_lane
select lane, grp, partition, priority, next, served, ready, blocked, delivered, consumed, failed,
    done, dead, skipped, purged, expired, hidden, copies, last_seq, last_created, last_at, keeps,
    kept
from cursors where lane = ?1 and exists (select 1 from groups g where g.id = cursors.grp)
-- name: cursors_of_group
select lane, grp, partition, priority, next, served, ready, blocked, delivered, consumed, failed,
    done, dead, skipped, purged, expired, hidden, copies, last_seq, last_created, last_at, keeps,
    kept
from cursors where grp = ?1
-- name: add_cursor
insert into cursors (lane, grp, partition, priority, next, ready, blocked, skipped, hidden,
    copies)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
-- name: save_cursor
update cursors set next = ?3, delivered = ?4, consumed = ?5, failed = ?6, done = ?7, dead = ?8,
    skipped = ?9, purged = ?10, expired = ?11, hidden = ?12, copies = ?13, last_seq = ?14,
    last_created = ?15, last_at = ?16, served = ?17, ready = ?18, blocked = ?19
where lane = ?1 and grp = ?2
-- name: save_counts
update cursors set next = ?3, delivered = ?4, consumed = ?5, failed = ?6, done = ?7, dead = ?8,
    skipped = ?9, purged = ?10, expired = ?11, hidden = ?12, copies = ?13, last_seq = ?14,
    last_created = ?15, last_at = ?16
where lane = ?1 and grp = ?2
-- name: save_kept
update cursors set next = ?3, delivered = ?4, consumed = ?5, failed = ?6, done = ?7, dead = ?8,
    skipped = ?9, purged = ?10, expired = ?11, hidden = ?12, copies = ?13, last_seq = ?14,
    last_created = ?15, last_at = ?16, kept = ?17, kept_lo = ?18, kept_hi = ?19, kept_at = ?20,
    kept_since = ?21
where lane = ?1 and grp = ?2
-- name: move_kept
update cursors set kept_at = ?4 where lane = ?1 and grp = ?2 and kept = ?3
-- name: keeper
select lane from cursors where grp = ?1 and keeps = 1
-- name: let_keep
update cursors set keeps = ?3 where lane = ?1 and grp = ?2
-- name: mark_ready
update cursors set ready = 1 where grp = ?1 and ready = 0 and (
    next < (select head from lanes where id = cursors.lane)
    or exists (select 1 from claim_rows c
        where c.lane = cursors.lane and c.grp = cursors.grp and c.lease = 0 and c.state = 2))
-- name: next_work
select lane, priority, served from cursors
where grp = ?1 and (priority, served) >= (?2, ?3) and ready = 1 and blocked = 0
order by priority, served, lane limit ?4
-- name: next_work_in
select lane from cursors where grp = ?1 and partition = ?2 and ready = 1 and blocked = 0
order by priority, served limit 1
-- name: quiet_work
select c.lane from cursors c where c.grp = ?1 and c.ready = 1 and c.blocked = 0
    and (c.partition = ?2 or ?2 is null)
    and not exists (select 1 from lanes l where l.partition = c.partition and l.last_at > ?3)
order by c.priority, c.served, c.lane limit 1
-- name: quiet_time
select min(last) from (select max(l.last_at) as last from cursors c
    join lanes l on l.partition = c.partition
    where c.grp = ?1 and c.ready = 1 and c.blocked = 0 group by c.partition) as quiet where last > ?2
-- name: unread_of_queue
select c.lane, c.grp, c.next from cursors c join lanes l on l.id = c.lane
where l.queue = ?1 and c.next < l.head and c.grp in (select id from groups where queue = ?1)
-- name: partition_leased
select 1 from cursors k where k.grp = ?1 and k.partition = ?2 and (k.kept > 0 or exists
    (select 1 from claim_rows c where c.lane = k.lane and c.grp = k.grp and c.lease > 0)) limit 1
-- name: block_none
update cursors set blocked = 0 where grp = ?1 and blocked = 1
-- name: block_leased
update cursors set blocked = 1 where grp = ?1 and partition in
    (select l.partition from claims c join lanes l on l.id = c.lane where c.grp = ?1 and c.state = 0)
-- name: drop_cursors_of_group
delete from cursors where (lane, grp) in (select lane, grp from cursors where grp = ?1 limit ?2)
returning delivered, consumed, failed
-- name: drop_cursors_of_lane
delete from cursors where (lane, grp) in (select lane, grp from cursors where lane = ?1 limit ?2)
returning delivered, consumed, failed
-- name: lowest_cursor
select min(next) from cursors where lane = ?1
-- name: ready_lanes
select lane from cursors where grp = ?1 and ready = 1 order by lane
-- name: lane_after
select id from lane_rows where id > ?1 order by id limit 1 offset ?2
-- name: passed_lanes
select l.id, l.queue, s.created_at from lane_rows l join segments s on s.lane = l.id and s.first = l.base
where l.id > ?1 and l.id <= ?2 and l.base < (select min(next) from cursors c where c.lane = l.id)
order by l.id
-- name: oldest_of_lanes
select l.id, l.queue, s.created_at from lane_rows l join segments s on s.lane = l.id and s.first = l.base
where l.id > ?1 and l.id <= ?2 order by l.id
-- name: waiting_lanes
select c.grp, c.lane, l.queue,
    (select case when first + count > c.next then created_at end from segments s
        where s.lane = c.lane and s.first <= c.next order by first desc limit 1),
    exists (select 1 from claim_rows k
        where k.lane = c.lane and k.grp = c.grp and k.lease = 0 and k.state = 2)
from cursors c join lane_rows l on l.id = c.lane
where c.lane > ?1 and c.lane <= ?2 and c.ready = 1 order by c.lane

-- name: add_claim
insert into claim_rows (lane, grp, id, lo, hi, n, ranges, state, at, since, deliveries, failures,
    redelivered, error, lease)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
-- name: save_claim
update claim_rows set lo = ?5, hi = ?6, n = ?7, ranges = ?8, state = ?9, at = ?10, since = ?11,
    deliveries = ?12, failures = ?13, redelivered = ?14, error = ?15, lease = ?16,
    held = case when cast(?9 as bigint) = 0 then held else 0 end
where lane = ?1 and grp = ?2 and lease = ?3 and id = ?4
-- name: shrink_claim
update claim_rows set lo = ?5, hi = ?6, n = n - ?7, ranges = ?8, acked_at = ?9
where lane = ?1 and grp = ?2 and lease = ?3 and id = ?4
-- name: drop_claim
delete from claim_rows where lane = ?1 and grp = ?2 and lease = ?3 and id = ?4
-- name: claims_of_lease
select id, grp, lane, lo, hi, ranges, state, at, since, deliveries, failures, redelivered, error,
    lease, acked_at, held from claims where lane = ?1 and grp = ?2 and lease = ?3
-- name: due_claims
select id, grp, lane, lo, hi, ranges, state, at, since, deliveries, failures, redelivered, error,
    lease, acked_at, held from claim_rows where lane = ?1 and grp = ?2 and state = 2 and lease = 0
order by lo limit ?3
-- name: claims_in
select id, grp, lane, lo, hi, ranges, state, at, since, deliveries, failures, redelivered, error,
    lease, acked_at, held from claims where lane = ?1 and grp = ?2 and lo < ?4 and hi > ?3
order by lo
-- name: claims_of_lane
select id, grp, lane, lo, hi, ranges, state, at, since, deliveries, failures, redelivered, error,
    lease, acked_at, held from claims where lane = ?1
-- name: unleased_claims
select id, grp, lane, lo, hi, ranges, state, at, since, deliveries, failures, redelivered, error,
    lease, acked_at, held from claim_rows where lane = ?1 and grp = ?2 and lease = 0 and lo < ?3
order by lo
-- name: leased_without_gaps
select 1 from claims where lane = ?1 and lease > 0 and lo < ?3 and hi > ?2 and ranges is null limit 1
-- name: leased_with_gaps
select ranges from claims
where lane = ?1 and lease > 0 and lo < ?3 and hi > ?2 and ranges is not null
-- name: claims_of_queue
select lane, lo, hi, ranges, state, failures from claims where grp in (select id from groups where queue = ?1)
-- name: lowest_unheld
select min(lo) from claim_rows where lane = ?1 and lease = 0
-- name: first_returned
select min(lo) from claim_rows where lane = ?1 and grp = ?2 and state = 1 and redelivered = 1
    and lease = 0
-- name: used_in
select lo, hi, ranges from claims where lane = ?1 and lo < ?3 and hi > ?2
union all select lo, hi, ranges from hand_parts where lane = ?1 and lo < ?3 and hi > ?2
-- name: expired_leases
select c.lease, c.n from (
    select * from (select lane, lease, lo, n from claim_rows
        where grp = ?1 and state = 0 and at <= ?2 and at >= ?5 order by at limit ?3) as first_over
    union all select lane, kept, kept_lo, kept_hi - kept_lo from cursors
    where grp = ?1 and keeps = 1 and kept > 0 and kept_at <= ?2) as c
join cursors k on k.lane = c.lane and k.grp = ?1 order by k.priority, c.lo limit ?4
-- name: over_or_due
select exists (select 1 from claims where grp = ?1 and state = 0 and at <= ?2 and at >= ?3),
    exists (select 1 from claim_rows where grp = ?1 and state = 1 and at <= ?2 and at >= ?3)
-- name: wake_due
update claim_rows set state = 2, at = null where (lane, grp, lease, id) in (
    select c.lane, c.grp, c.lease, c.id from (select lane, grp, lease, id, lo from claim_rows
        where grp = ?1 and state = 1 and at <= ?2 and at >= ?5 and redelivered = 1
        order by at limit ?3) as c
    join cursors k on k.lane = c.lane and k.grp = ?1 order by k.priority, c.lo limit ?4)
returning lane
-- name: delayed_due
select c.id, c.grp, c.lane, lo, hi, ranges, state, at, since, deliveries, failures, redelivered,
    error, lease, acked_at, held
from (select * from claim_rows
    where grp = ?1 and state = 1 and at <= ?2 and at >= ?5 and redelivered <> 1
    order by at limit ?3) as c
join cursors k on k.lane = c.lane and k.grp = ?1 order by k.priority, c.lo limit ?4
-- name: next_time
select min(at) from (
    select min(at) as at from claim_rows where grp = ?1 and state = 0 and at >= ?2
    union all select min(at) from claim_rows where grp = ?1 and state = 1 and at >= ?2
    union all select kept_at from cursors where grp = ?1 and keeps = 1 and kept > 0) as times
-- name: leased_count
select coalesce(sum(n), 0) from claims where grp = ?1 and state = 0 and held = 0
-- name: lock_end
select max(at) from (
    select max(at) as at from claim_rows where grp = ?1 and state = 0
    union all select kept_at from cursors where grp = ?1 and keeps = 1 and kept > 0) as times
-- name: claim_counts
select lane, case when state = 1 and at <= ?2 then 2 else state end as now_state, sum(n), min(lo)
from claims where grp = ?1 group by lane, now_state
-- name: holders
select distinct l.consumer from claims c join leases l on l.id = c.lease
where c.grp = ?1 and c.state = 0 and c.at > ?2 and l.acquired_at >= ?3
-- name: live_leases
select distinct lease from claims where grp = ?1 and state = 0 and at > ?2 limit ?3
-- name: groups_with_expired
select g.id from groups g where exists
    (select 1 from claim_rows c where c.grp = g.id and c.state = 0 and c.at <= ?1)
    or exists (select 1 from claim_rows c where c.grp = g.id and c.state = 1 and c.at <= ?1)
    or exists (select 1 from cursors k where k.grp = g.id and k.keeps = 1 and k.kept_at <= ?1)
-- name: drop_claims_of_group
delete from claim_rows where (lane, grp, lease, id) in
    (select lane, grp, lease, id from claim_rows where grp = ?1 limit ?2) returning id
-- name: drop_claims_of_lane
delete from claim_rows where (lane, grp, lease, id) in
    (select lane, grp, lease, id from claim_rows where lane = ?1 limit ?2) returning id

-- name: first_lease
select min(id) from leases
-- name: last_lease
select max(id) from leases
-- name: lease_with_token
select id, token, grp, consumer, acquired_at, expires_at, ended_at, n, lane, lo, hi, number, parts,
    fates
from leases where id = ?1 and token = ?2
-- name: lease_by_token
select id, token, grp, consumer, acquired_at, expires_at, ended_at, n, lane, lo, hi, number, parts,
    fates
from leases where token = ?1 and token & 16777215 <> id & 16777215
-- name: lease_by_id
select id, token, grp, consumer, acquired_at, expires_at, ended_at, n, lane, lo, hi, number, parts,
    fates
from leases where id = ?1
-- name: leases_of
select id, token, grp, consumer, acquired_at, expires_at, ended_at, n, lane, lo, hi, number, parts,
    fates
from leases where grp = ?1 and (lane is null or (lane = ?2 and lo <= ?3 and hi > ?3))
order by id desc
-- name: add_lease
insert into leases (id, token, grp, consumer, acquired_at, expires_at, n, lane, lo, hi, number,
    parts)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
-- name: save_lease
update leases set expires_at = ?2, ended_at = ?3, fates = ?4 where id = ?1
-- name: end_lease
update leases set ended_at = ?2, fates = ?3 where id = ?1
-- name: move_claims
update claim_rows set at = ?4 where lane = ?1 and grp = ?2 and lease = ?3
-- name: leases_after
select id, grp, acquired_at, ended_at,
    exists (select 1 from hand_parts p where p.token = leases.token)
from leases where id > ?1 order by id limit ?2
-- name: lease_times
select id, grp, acquired_at, ended_at,
    exists (select 1 from hand_parts p where p.token = leases.token)
from leases where id = ?1
-- name: drop_lease
delete from leases where id = ?1
-- name: leases_and_groups
select id, exists (select 1 from groups g where g.id = leases.grp) from leases
where id > ?1 order by id limit ?2

-- name: add_dead
insert into dead (queue, grp, lane, seq, kind, reason, error, deliveries, failures, created_at,
    died_at, consumer, payload, rest)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
on conflict (grp, lane, seq) do update set kind = excluded.kind, reason = excluded.reason,
    error = excluded.error, deliveries = excluded.deliveries, failures = excluded.failures, died_at = excluded.died_at,
    consumer = excluded.consumer, counted = 1
-- name: dead_of
select * from dead where grp = ?1 and lane = ?2 and seq = ?3
-- name: dead_runs
select lane, min(seq), max(seq) + 1 from (
    select lane, seq, seq - dense_rank() over (partition by lane order by seq) as run
    from dead where queue = ?1
) as runs group by lane, run order by lane, 2
-- name: dead_of_partition
select lane, seq, rest from dead where queue = ?1
    and lane in (select id from lanes where partition = ?2) order by id desc
-- name: dead_ids_after
select id from dead where queue = ?1 and id > ?2 order by id limit ?3
-- name: dead_by_id
select * from dead where id = ?1
-- name: dead_page
select * from dead where queue = ?1 and id < ?2
  and (grp = ?3 or ?3 is null) and (kind = ?4 or ?4 is null)
  and (lane in (select id from lanes where partition = ?5) or ?5 is null)
  and (died_at >= ?6 or ?6 is null) and (died_at < ?7 or ?7 is null)
order by id desc limit ?8 offset ?9
-- name: dead_sizes
select id, length(payload) from dead where queue = ?1 and id < ?2
  and (grp = ?3 or ?3 is null) and (kind = ?4 or ?4 is null)
  and (lane in (select id from lanes where partition = ?5) or ?5 is null)
  and (died_at >= ?6 or ?6 is null) and (died_at < ?7 or ?7 is null)
order by id desc limit ?8 offset ?9
-- name: dead_oldest
select id from dead where queue = ?1
  and (grp = ?2 or ?2 is null) and (kind = ?3 or ?3 is null)
  and (lane in (select id from lanes where partition = ?4) or ?4 is null)
  and (died_at >= ?5 or ?5 is null) and (died_at < ?6 or ?6 is null)
order by id limit ?7
-- name: dead_oldest_after
select id from dead where queue = ?1
  and (grp = ?2 or ?2 is null) and (kind = ?3 or ?3 is null)
  and (lane in (select id from lanes where partition = ?4) or ?4 is null)
  and (died_at >= ?5 or ?5 is null) and (died_at < ?6 or ?6 is null)
  and id > ?7 order by id limit ?8
-- Dead letters with a text in their reason or error, or with a sealed one, which begins with a mark.
-- name: dead_like
select id, grp, lane, seq, reason, error from dead where queue = ?1
  and (grp = ?2 or ?2 is null) and (kind = ?3 or ?3 is null)
  and (lane in (select id from lanes where partition = ?4) or ?4 is null)
  and (died_at >= ?5 or ?5 is null) and (died_at < ?6 or ?6 is null)
  and (instr(reason, ?7) > 0 or instr(error, ?7) > 0 or instr(reason, ?8) = 1 or instr(error, ?8) = 1)
  and id > ?9 order by id limit ?10
-- name: dead_like_before
select id, grp, lane, seq, reason, error from dead where queue = ?1
  and (grp = ?2 or ?2 is null) and (kind = ?3 or ?3 is null)
  and (lane in (select id from lanes where partition = ?4) or ?4 is null)
  and (died_at >= ?5 or ?5 is null) and (died_at < ?6 or ?6 is null)
  and (instr(reason, ?7) > 0 or instr(error, ?7) > 0 or instr(reason, ?8) = 1 or instr(error, ?8) = 1)
  and id < ?9 order by id desc limit ?10
-- name: dead_count
select count(*) from dead where queue = ?1
  and (grp = ?2 or ?2 is null) and (kind = ?3 or ?3 is null)
  and (lane in (select id from lanes where partition = ?4) or ?4 is null)
  and (died_at >= ?5 or ?5 is null) and (died_at < ?6 or ?6 is null)
-- name: dead_count_like
select count(*) from dead where queue = ?1
  and (grp = ?2 or ?2 is null) and (kind = ?3 or ?3 is null)
  and (lane in (select id from lanes where partition = ?4) or ?4 is null)
  and (died_at >= ?5 or ?5 is null) and (died_at < ?6 or ?6 is null)
  and (instr(reason, ?7) > 0 or instr(error, ?7) > 0)
  and coalesce(instr(reason, ?8), 0) <> 1 and coalesce(instr(error, ?8), 0) <> 1
-- name: dead_fits
select id from dead where queue = ?1
  and (grp = ?2 or ?2 is null) and (kind = ?3 or ?3 is null)
  and (lane in (select id from lanes where partition = ?4) or ?4 is null)
  and (died_at >= ?5 or ?5 is null) and (died_at < ?6 or ?6 is null)
  and id = ?7
-- name: dead_summary
select grp, kind, substr(reason, 1, instr(reason || ':', ':') - 1), count(*), min(died_at),
    max(died_at)
from dead where queue = ?1 and (grp = ?2 or ?2 is null) and coalesce(instr(reason, ?3), 0) <> 1
group by 1, 2, 3
-- name: dead_reasons
select grp, lane, seq, kind, reason, died_at from dead
where queue = ?1 and (grp = ?2 or ?2 is null) and instr(reason, ?3) = 1
-- name: uncount_letter
update dead set counted = 0 where grp = ?1 and lane = ?2 and seq = ?3
-- name: dead_newest
select id, queue, grp, lane, seq, kind, reason, error, died_at from dead where id < ?1
order by id desc limit ?2
-- name: dead_newest_of_queue
select id, queue, grp, lane, seq, kind, reason, error, died_at from dead where queue = ?1 and id < ?2
order by id desc limit ?3
-- name: dead_after
select id, grp, lane, seq, kind, reason, error from dead where queue = ?1 and id > ?2
order by id limit ?3
-- name: some_bytes
select count(*), coalesce(sum(bytes), 0) from (select s.bytes from segments s
    join lane_rows l on l.id = s.lane where l.queue = ?1 and s.first >= l.base limit ?2) as several
-- name: dead_per_group
select grp, count(*) from dead where queue = ?1 group by grp
-- name: uncount_dead
update dead set counted = 0 where grp = ?1 and lane = ?2 and seq >= ?3
-- name: drop_dead
delete from dead where id = ?1
-- name: drop_dead_of_queue
delete from dead where id in (select id from dead where queue = ?1 order by id limit ?2) returning id
-- name: drop_dead_of_group
delete from dead where id in (select id from dead where grp = ?1 order by lane, seq limit ?2)
returning id

-- name: get_key
select digest, answer from keys where key = ?1 and at > ?2
-- name: add_key
insert into keys values (?1, ?2, ?3, ?4) on conflict (key) do update
set digest = excluded.digest, answer = excluded.answer, at = excluded.at
-- name: old_keys
delete from keys where key in (select key from keys where at <= ?1 order by at limit ?2)
returning key

-- name: get_txid
select lane, seq, at from txids where partition = ?1 and txid = ?2
-- name: drop_txid
delete from txids where partition = ?1 and txid = ?2 and lane = ?3 and seq = ?4 and at is null
-- name: old_txids
delete from txids where (partition, txid) in
    (select partition, txid from txids where at is not null and at <= ?1 order by at limit ?2)
returning txid
-- name: any_old
select exists (select 1 from keys where at <= ?1)
    or exists (select 1 from txids where at is not null and at <= ?2)
    or exists (select 1 from stages where created_at <= ?3)
    or exists (select 1 from readers where seen_at <= ?4)
    or exists (select 1 from traces where at <= ?5)
    or exists (select 1 from kv where expires_at is not null and expires_at <= ?2)
    or exists (select 1 from sweeps where ended_at <= ?6)
-- name: has_txids
select exists (select 1 from txids where partition = ?1)
-- name: txids_after
select txid, lane, seq, at from txids where partition = ?1 and txid > ?2 order by txid limit ?3
-- name: drop_txids_of_partition
delete from txids where (partition, txid) in
    (select partition, txid from txids where partition = ?1 limit ?2) returning txid

-- name: get_value
select value, version, updated_at, expires_at, lease from kv where key = ?1
-- name: put_value
insert into kv values (?1, ?2, ?3, ?4, null, null) on conflict (key) do update
set value = excluded.value, version = excluded.version, updated_at = excluded.updated_at,
    expires_at = null, lease = null
-- name: put_ending_value
insert into kv values (?1, ?2, ?3, ?4, ?5, ?6) on conflict (key) do update
set value = excluded.value, version = excluded.version, updated_at = excluded.updated_at,
    expires_at = excluded.expires_at, lease = excluded.lease
-- name: set_value_end
update kv set expires_at = ?2 where key = ?1
-- name: ended_values
select key, version, lease from kv where expires_at is not null and expires_at <= ?1
order by expires_at limit ?2
-- name: drop_value
delete from kv where key = ?1
-- name: drop_values
delete from kv where key >= ?1 and key < ?2
-- name: values_with
select key, value, version, updated_at, expires_at, lease from kv where key >= ?1 and key < ?2
order by key limit ?3
-- name: values_with_from_end
select key, value, version, updated_at, expires_at, lease from kv where key >= ?1 and key < ?2
order by key desc limit ?3

-- name: add_trace
insert into traces (partition, txid, lane, seq, grp, consumer, event, data, at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
-- name: set_trace_data
update traces set data = ?2 where id = ?1
-- name: add_trace_name
insert into trace_names values (?1, ?2) on conflict do nothing
-- name: traces_of
select id, partition, txid, lane, seq, grp, consumer, event, data, at from traces
where partition = ?1 and txid = ?2 order by id limit 10000
-- name: traces_named
select t.id, partition, txid, lane, seq, grp, consumer, event, data, at
from trace_names n join traces t on t.id = n.trace where n.name = ?1 order by n.trace limit ?2 offset ?3
-- name: count_named
select count(*) from trace_names where name = ?1
-- name: names_of_trace
select name from trace_names where trace = ?1 order by name
-- name: trace_names
select n.name, count(*), count(distinct t.lane << 48 | t.seq), max(t.at)
from trace_names n join traces t on t.id = n.trace group by n.name order by 4 desc, 1 limit ?1 offset ?2
-- name: count_trace_names
select count(distinct name) from trace_names
-- name: old_traces
select id from traces where at <= ?1 order by at limit ?2
-- name: traces_of_partition
select id from traces where partition = ?1 limit ?2
-- name: drop_trace
delete from traces where id = ?1
-- name: drop_names_of_trace
delete from trace_names where trace = ?1

-- name: add_stage
insert into stages values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
-- name: stage
select * from stages where stage = ?1 order by piece
-- name: stages_of_batch
select distinct stage from stages where producer = ?1 and batch = ?2
-- name: old_stages
select distinct stage from stages where created_at <= ?1 limit ?2
-- name: drop_stage
delete from stages where stage = ?1
-- name: producer
select batch, answer from producers where producer = ?1
-- name: put_producer
insert into producers values (?1, ?2, ?3, ?4) on conflict (producer) do update
set batch = excluded.batch, answer = excluded.answer, at = excluded.at

-- name: reader
select id, grp, manual, epoch, number, seen_at from readers where id = ?1
-- name: put_reader
insert into readers values (?1, ?2, ?3, ?4, ?5, ?6) on conflict (id) do update
set grp = excluded.grp, manual = excluded.manual, epoch = excluded.epoch,
    number = excluded.number, seen_at = excluded.seen_at
-- name: raise_epochs
update readers set epoch = epoch + 1 where grp = ?1
-- name: old_readers
select id from readers where seen_at <= ?1 order by seen_at limit ?2
-- name: drop_hand_parts_of_group
delete from hand_parts where reader in (select id from readers where grp = ?1)
-- name: drop_hands_of_group
delete from hands where reader in (select id from readers where grp = ?1)
-- name: drop_readers_of_group
delete from readers where grp = ?1
-- name: drop_reader
delete from readers where id = ?1
-- name: group_has_work
select exists (select 1 from cursors where grp = ?1 and ready = 1 and blocked = 0)
    or exists (select 1 from claims where grp = ?1 and state = 0 and at <= ?2)
    or exists (select 1 from claim_rows where grp = ?1 and state = 1 and at <= ?2)

-- name: hands_between
select reader, number, epoch, query, batch, run, done from hands where reader = ?1 and number > ?2 and number <= ?3
order by number
-- name: hands_of_batch
select reader, number, epoch, query, batch, run, done from hands where query = ?1 and batch = ?2
order by reader, number
-- name: put_hand
insert into hands (reader, number, epoch, query, batch, run, done)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7) on conflict (reader, number) do update
set epoch = excluded.epoch, query = excluded.query, batch = excluded.batch, run = excluded.run,
    done = excluded.done
-- name: drop_hand
delete from hands where reader = ?1 and number = ?2
-- name: hand_parts
select lane, token, lo, hi, ranges, bad from hand_parts where reader = ?1 and number = ?2
order by lane, lo
-- name: hand_part
select lane, token, lo, hi, ranges, bad from hand_parts
where reader = ?1 and number = ?2 and lane = ?3 and token = ?4
-- name: put_hand_part
insert into hand_parts values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
on conflict (reader, number, lane, token) do update
set lo = excluded.lo, hi = excluded.hi, ranges = excluded.ranges, bad = excluded.bad
-- name: drop_hand_part
delete from hand_parts where reader = ?1 and number = ?2 and lane = ?3 and token = ?4
-- name: drop_hand_parts
delete from hand_parts where reader = ?1 and number = ?2
-- name: hold_claim
update claim_rows set held = 1 where lane = ?1 and grp = ?2 and lease = ?3 and id = ?4
-- name: unheld_claims
select lane, lo, hi, ranges from claims where lane = ?1 and grp = ?2 and lease = ?3 and held = 0

-- Rows written while the clock was ahead; see broker/core/upkeep/clock_recovery.py.
-- name: newest_message
select max(last_at) from lanes
-- name: newest_lease
select acquired_at from leases order by id desc limit 1
-- name: segments_after
select lane, first, created_at, not_before from segments where (lane, first) > (?1, ?2)
order by lane, first limit ?3
-- name: set_segment_times
update segments set created_at = ?3, not_before = ?4 where lane = ?1 and first = ?2
-- name: claims_ahead
select lane, grp, lease, id, lo, state, redelivered, at, since from claim_rows
where (lane, grp, lease, id) > (?1, ?2, ?3, ?4)
    and (since > ?5 or (state = 1 and (at is null or at > ?5)))
order by lane, grp, lease, id limit ?6
-- name: set_claim_times
update claim_rows set state = ?5, at = ?6, since = ?7
where lane = ?1 and grp = ?2 and lease = ?3 and id = ?4
-- name: leases_ahead
select id from leases where id > ?1 and (acquired_at > ?2 or ended_at > ?2
    or (ended_at is null and expires_at > ?3))
order by id limit ?4
-- name: set_acquired
update leases set acquired_at = ?2 where id = ?1
-- name: txids_ahead
select partition, txid from txids where at is not null and at > ?1 order by at limit ?2
-- name: set_txid_time
update txids set at = ?3 where partition = ?1 and txid = ?2
-- name: expiring_ahead
select lane, seq, at from expiring where (lane, seq) > (?1, ?2) and at > ?3 order by lane, seq limit ?4
-- name: set_expiring
update expiring set at = ?3 where lane = ?1 and seq = ?2
-- name: declarations_ahead
update declarations set used_at = ?2 where queue in
    (select queue from declarations where used_at > ?1 limit ?3) returning queue
-- name: audit_ahead
update audit set at = ?2 where id in (select id from audit where at > ?1 limit ?3) returning id
-- Points of a chart have no place before their time.
-- name: series_ahead
delete from series where (queue, step, start) in (select queue, step, start from series
    where start > ?1 / 1000000 and ?2 > 0 limit ?3) returning queue
-- name: set_group_time
update groups set created_at = ?2 where id = ?1
-- name: access_tokens_ahead
update tokens set expires_at = expires_at - (created_at - ?2), created_at = ?2 where created_at > ?1
returning id
-- name: keys_ahead
update keys set at = ?2 where key in (select key from keys where at > ?1 limit ?3) returning key
-- name: values_ahead
update kv set expires_at = expires_at - (updated_at - ?2), updated_at = ?2 where key in
    (select key from kv where expires_at is not null and expires_at > ?1 and updated_at > ?1 limit ?3)
returning key
-- name: stages_ahead
update stages set created_at = ?2 where (stage, piece) in
    (select stage, piece from stages where created_at > ?1 limit ?3) returning piece
-- name: readers_ahead
update readers set seen_at = ?2 where id in (select id from readers where seen_at > ?1 limit ?3)
returning id
-- name: traces_ahead
update traces set at = ?2 where id in (select id from traces where at > ?1 limit ?3) returning id
-- name: dead_ahead
update dead set died_at = ?2, created_at = case when created_at > ?1 then ?2 else created_at end
where id in (select id from dead where died_at > ?1 limit ?3) returning id
-- name: lanes_ahead
update lane_rows set last_at = ?2 where id in
    (select id from lane_rows where last_at > ?1 limit ?3) returning id
-- name: cursors_ahead
update cursors set served = case when served > ?1 then 0 else served end,
    last_at = case when last_at > ?1 then ?2 else last_at end,
    last_created = case when last_created > ?1 then ?2 else last_created end,
    kept_since = case when kept_since > ?1 then ?2 else kept_since end
where (lane, grp) in (select lane, grp from cursors where served > ?1 or last_at > ?1
    or last_created > ?1 or kept_since > ?1 limit ?3)
returning lane
-- name: queues_ahead
update queues set created_at = ?2 where id in
    (select id from queues where created_at > ?1 limit ?3) returning id
-- name: partitions_ahead
update partitions set created_at = ?2 where id in
    (select id from partitions where created_at > ?1 limit ?3) returning id

-- Rows with encrypted columns, to encrypt them again with another key: store/reseal.py. A page shows
-- only the first bytes of the data, which name the key.

-- name: sealed_segments
select lane, first, body, carry, substr(data, 1, 4), rest from segments
where (lane, first) > (?1, ?2) order by lane, first limit ?3
-- name: sealed_segment
select body, carry, ends, data, rest from segments where lane = ?1 and first = ?2
-- name: sealed_body
select substr(data, 1, 4), rest from bodies where id = ?1
-- name: set_carry
update segments set carry = ?3 where lane = ?1 and first = ?2
-- name: set_small_body
update segments set data = ?3, rest = ?4 where lane = ?1 and first = ?2
-- name: set_body
update bodies set data = ?2, rest = ?3 where id = ?1
-- name: sealed_stages
select stage, piece, body from stages where (stage, piece) > (?1, ?2) order by stage, piece limit ?3
-- name: sealed_dead
select id, substr(payload, 1, 4), rest, reason, error from dead where id > ?1 order by id limit ?2
-- name: sealed_letter
select grp, lane, seq, payload, rest, reason, error from dead where id = ?1
-- name: set_letter
update dead set payload = ?2, rest = ?3, reason = ?4, error = ?5 where id = ?1
-- name: sealed_claims
select lane, grp, lease, id, error from claim_rows where (lane, grp, lease, id) > (?1, ?2, ?3, ?4)
order by lane, grp, lease, id limit ?5
-- name: claim_error
select error from claim_rows where lane = ?1 and grp = ?2 and lease = ?3 and id = ?4
-- name: set_claim_error
update claim_rows set error = ?5 where lane = ?1 and grp = ?2 and lease = ?3 and id = ?4
-- name: sealed_traces
select id, substr(data, 1, 5) from traces where id > ?1 order by id limit ?2
-- name: sealed_trace
select lane, seq, data from traces where id = ?1
-- name: sealed_values
select key, substr(value, 1, 5) from kv where key > ?1 order by key limit ?2
-- name: set_value_data
update kv set value = ?2 where key = ?1

-- name: add_exchange
insert into exchanges values (?1, ?2, ?3, ?4, ?5, ?6)
-- name: exchange
select name, kind, durable, auto_delete, internal, arguments from exchanges where name = ?1
-- name: all_exchanges
select name, kind, durable, auto_delete, internal, arguments from exchanges order by name
-- name: drop_exchange
delete from exchanges where name = ?1
-- name: add_binding
insert into bindings values (?1, ?2, ?3, ?4, ?5) on conflict do nothing
-- name: drop_binding
delete from bindings where source = ?1 and to_exchange = ?2 and destination = ?3
    and routing_key = ?4 and arguments = ?5 returning source
-- name: bindings_from
select source, to_exchange, destination, routing_key, arguments from bindings where source = ?1
-- name: bindings_to
select source, to_exchange, destination, routing_key, arguments from bindings
where to_exchange = ?1 and destination = ?2
-- name: drop_bindings_from
delete from bindings where source = ?1
-- name: drop_bindings_to
delete from bindings where to_exchange = ?1 and destination = ?2
-- name: any_binding_from
select 1 from bindings where source = ?1 limit 1

-- name: put_declaration
insert into declarations values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict (queue) do update set durable = excluded.durable, auto_delete = excluded.auto_delete,
    owner = excluded.owner, server = excluded.server, used_at = excluded.used_at,
    arguments = excluded.arguments
-- name: declaration
select queue, durable, auto_delete, owner, server, used_at, arguments from declarations
where queue = ?1
-- name: all_declarations
select queue, durable, auto_delete, owner, server, used_at, arguments from declarations
-- name: drop_declaration
delete from declarations where queue = ?1
-- name: use_queue
update declarations set used_at = ?2 where queue = ?1

-- name: add_expiring
insert into expiring values (?1, ?2, ?3)
-- name: expiring_in
select seq from expiring where lane = ?1 and at <= ?2 order by seq limit ?3
-- name: expiring_lanes
select distinct lane from (select lane from expiring where at <= ?1 order by at limit ?2) as due
-- name: put_off_expiring
update expiring set at = ?3 where lane = ?1 and seq = ?2
-- name: drop_expiring
delete from expiring where lane = ?1 and seq = ?2
-- name: drop_expiring_of_lane
delete from expiring where (lane, seq) in
    (select lane, seq from expiring where lane = ?1 limit ?2) returning seq
-- name: any_expiring
select 1 from expiring where lane = ?1 limit 1
-- name: used_at
select used_at from declarations where queue = ?1

-- Seek, purge and delete in slices; see broker/core/upkeep/sweeps.py.
-- name: add_sweep
insert into sweeps (kind, queue, grp, partition, target, queue_name, group_name, upto, lanes, started_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
-- name: sweep
select id, kind, queue, grp, partition, target, queue_name, group_name, upto, after, phase, lanes, done, n,
    started_at, ended_at from sweeps where id = ?1
-- name: sweeps
select id, kind, queue, grp, partition, target, queue_name, group_name, upto, after, phase, lanes, done, n,
    started_at, ended_at from sweeps order by id
-- name: save_sweep
update sweeps set after = ?2, phase = ?3, done = ?4, n = ?5, ended_at = ?6 where id = ?1
-- name: drop_sweep
delete from sweeps where id = ?1
-- name: old_sweeps
delete from sweeps where ended_at <= ?1 returning id
-- name: is_swept
select 1 from swept where sweep = ?1 and lane = ?2
-- name: add_swept
insert into swept values (?1, ?2)
-- name: drop_swept
delete from swept where sweep = ?1 and lane <= ?2
-- name: put_cut_lane
insert into cut_lanes values (?1, ?2) on conflict (lane) do update set stop = excluded.stop
-- name: cut_lane
select lane, stop from cut_lanes order by lane limit 1
-- name: drop_cut_lane
delete from cut_lanes where lane = ?1
-- name: deleted_pushed
select coalesce(sum(head), 0) from lanes where queue = ?1
-- name: deleted_counts_of_queue
select coalesce(sum(c.delivered), 0), coalesce(sum(c.consumed), 0), coalesce(sum(c.failed), 0)
from lane_rows l join cursors c on c.lane = l.id where l.queue = ?1
-- name: deleted_counts_of_group
select coalesce(sum(delivered), 0), coalesce(sum(consumed), 0), coalesce(sum(failed), 0)
from cursors where grp = ?1
