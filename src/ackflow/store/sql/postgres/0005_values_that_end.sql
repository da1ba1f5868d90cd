-- Keyed values that end: at a time, or with a lease.
alter table kv add column expires_at bigint;
alter table kv add column lease bigint;
create index kv_by_end on kv (expires_at) where expires_at is not null;
