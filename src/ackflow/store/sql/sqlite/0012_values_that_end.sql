-- Keyed values that end: at a time, or with a lease.
alter table kv add column expires_at integer;
alter table kv add column lease integer;
create index kv_by_end on kv (expires_at) where expires_at is not null;
