-- Claims are clustered by lane, group and lease, the key of their lookups. This saves two page writes for
-- each delivery and each settle.

alter table claims rename to scattered_claims;
drop index claims_by_time;
drop index claims_of_lane;
drop index claims_leased;

create table claims (
    lane integer not null,
    grp integer not null,
    lease integer not null,                 -- 0: not leased
    id integer not null,                    -- random
    lo integer not null,                    -- first sequence
    hi integer not null,                    -- end, exclusive
    n integer not null,
    ranges blob,                            -- null if [lo, hi) has no gaps
    state integer not null,                 -- 0 leased -> 1 waiting -> 2 due -> 0 leased
    at integer,                             -- when the lease expires or the claim is due
    since integer not null,                 -- start of the waiting time: created_at or not_before
    deliveries integer not null,
    failures integer not null,
    redelivered integer not null,
    error text,
    acked_at integer,                       -- the first ack that the lease's fates do not record
    held integer not null default 0,        -- 1: leased, and not counted against max_ack_pending
    primary key (lane, grp, lease, id)
) without rowid;
create index claims_by_time on claims (grp, state, at);
create index claims_of_lane on claims (lane, grp, state, lo) where lease = 0;

insert into claims
select lane, grp, coalesce(lease, 0), id, lo, hi, n, ranges, state, at, since, deliveries, failures,
    redelivered, error, acked_at, held
from scattered_claims;
drop table scattered_claims;
