-- The statements of PostgreSQL only.

-- name: database_version
select 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1)
-- name: put_body
insert into bodies (id, ends, data, rest) values (?1, ?2, ?3, ?4)
-- name: get_txids
select t.txid, t.lane, t.seq, t.at from jsonb_array_elements_text(?2::jsonb) as j
join txids t on t.partition = ?1 and t.txid = j.value
-- name: put_txids
insert into txids
select ?1, value ->> 0, ?2, (value ->> 1)::bigint, ?3 from jsonb_array_elements(?4::jsonb)
on conflict (partition, txid) do update
set lane = excluded.lane, seq = excluded.seq, at = excluded.at

-- Lookups of cursors by other keys than lane and group, which visit no dead row versions; see NEWEST in
-- postgres/connection.py. The cursor of a group that holds a claim is found by a backward index scan
-- from the newest entry, the cursors of a partition by its lanes.

-- name: keeper
select lane from (select * from cursors where grp = ?1 and keeps = 1
        order by grp desc, rev desc limit 1) as k
-- name: claims_of_lease
select id, grp, lane, lo, hi, ranges, state, at, since, deliveries, failures, redelivered, error,
    lease, acked_at, held from claim_rows where lane = ?1 and grp = ?2 and lease = ?3
union all select 0, grp, lane, kept_lo, kept_hi, null, 0, kept_at, kept_since, 1, 0, 0, null, kept,
    null, 0
from cursors where lane = ?1 and grp = ?2 and keeps = 1 and kept = ?3
-- name: expired_leases
select c.lease, c.n from (
    select * from (select lane, lease, lo, n from claim_rows
        where grp = ?1 and state = 0 and at <= ?2 and at >= ?5 order by at limit ?3) as first_over
    union all select lane, kept, kept_lo, kept_hi - kept_lo
    from (select * from cursors where grp = ?1 and keeps = 1
        order by grp desc, rev desc limit 1) as k where kept > 0 and kept_at <= ?2) as c
cross join lateral (select priority from cursors where lane = c.lane and grp = ?1
    order by lane desc, grp desc, rev desc limit 1) as k
order by k.priority, c.lo limit ?4
-- name: over_or_due
select exists (select 1 from claim_rows where grp = ?1 and state = 0 and at <= ?2 and at >= ?3)
    or exists (select 1 from (select * from cursors where grp = ?1 and keeps = 1
        order by grp desc, rev desc limit 1) as k where kept > 0 and kept_at <= ?2),
    exists (select 1 from claim_rows where grp = ?1 and state = 1 and at <= ?2 and at >= ?3)
-- name: next_time
select min(at) from (
    select min(at) as at from claim_rows where grp = ?1 and state = 0 and at >= ?2
    union all select min(at) from claim_rows where grp = ?1 and state = 1 and at >= ?2
    union all select kept_at from (select * from cursors where grp = ?1 and keeps = 1
        order by grp desc, rev desc limit 1) as k where kept > 0) as times
-- name: lock_end
select max(at) from (
    select max(at) as at from claim_rows where grp = ?1 and state = 0
    union all select kept_at from (select * from cursors where grp = ?1 and keeps = 1
        order by grp desc, rev desc limit 1) as k where kept > 0) as times
-- name: next_work_in
select k.lane from lane_rows l
cross join lateral (select * from cursors where lane = l.id and grp = ?1
    order by lane desc, grp desc, rev desc limit 1) as k
where l.partition = ?2 and k.ready = 1 and k.blocked = 0 order by k.priority, k.served limit 1
-- name: partition_leased
select 1 from lane_rows l
cross join lateral (select * from cursors where lane = l.id and grp = ?1
    order by lane desc, grp desc, rev desc limit 1) as k
where l.partition = ?2 and (k.kept > 0 or exists
    (select 1 from claim_rows c where c.lane = k.lane and c.grp = k.grp and c.lease > 0)) limit 1
-- name: groups_with_expired
select g.id from groups g where exists
    (select 1 from claim_rows c where c.grp = g.id and c.state = 0 and c.at <= ?1)
    or exists (select 1 from claim_rows c where c.grp = g.id and c.state = 1 and c.at <= ?1)
    or exists (select 1 from (select kept_at from cursors where grp = g.id and keeps = 1
        order by grp desc, rev desc limit 1) as k where k.kept_at <= ?1)
-- name: passed_lanes
select l.id, l.queue, s.created_at from lane_rows l join segments s on s.lane = l.id and s.first = l.base
where l.id > ?1 and l.id <= ?2 and l.base < (select min((select next from cursors
    where lane = l.id and grp = g.id order by lane desc, grp desc, rev desc limit 1)) from groups g where g.queue = l.queue)
order by l.id

-- The counter is updated by its ctid: an upsert would look it up among dead row versions.
-- name: add_tally
with added as (update tallies set n = n + ?3 where ctid = (select ctid from tallies
    where grp >= ?1 and grp <= ?1 and name >= ?2 and name <= ?2
    order by grp desc, name desc limit 1) returning 1)
insert into tallies select ?1, ?2, ?3 where not exists (select 1 from added)
-- name: tally
select n from tallies where grp >= ?1 and grp <= ?1 and name >= ?2 and name <= ?2
order by grp desc, name desc limit 1

-- Tokens made by a broker contain the end of the lease's id; brokers take the ids in blocks.
-- name: lease_of_token
select id, token, grp, consumer, acquired_at, expires_at, ended_at, n, lane, lo, hi, number, parts,
    fates
from leases where token = ?1 and id = any (array(select id from generate_series(
    {top} - ((({top} & 16777215) - (?1 & 16777215)) & 16777215), 1, -16777216) as id))
