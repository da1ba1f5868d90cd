-- Most claims are of new messages without gaps under a lease. Such a claim is stored in the cursor that
-- was moved past its messages, which saves two page writes for each delivery and each settle. At most
-- one cursor of a group holds a claim, so that it is found without a scan.
-- From this version on, empty fates of a lease mean that all messages were acked when it ended.

alter table cursors add column keeps bigint not null default 0;
alter table cursors add column kept bigint not null default 0;    -- the lease; 0: no claim is stored
alter table cursors add column kept_lo bigint;
alter table cursors add column kept_hi bigint;
alter table cursors add column kept_at bigint;
alter table cursors add column kept_since bigint;
create unique index cursors_that_keep on cursors (grp) where keeps = 1;

alter table claims rename to claim_rows;

create view claims as
select lane, grp, lease, id, lo, hi, n, ranges, state, at, since, deliveries, failures, redelivered,
    error, acked_at, held
from claim_rows
union all
select lane, grp, kept, 0, kept_lo, kept_hi, kept_hi - kept_lo, null, 0, kept_at, kept_since, 1, 0, 0,
    null, null, 0
from cursors where keeps = 1 and kept > 0;
