-- A version and a lock for each queue, in place of one for the whole schema.

-- One row for each broker and each fence: a queue by its id, 0 for the whole schema, negative numbers
-- for what belongs to no queue (store/postgres/fences.py).
alter table writes add column fence bigint not null default 0;
alter table writes drop constraint writes_pkey;
alter table writes add primary key (fence, n);

-- A broker of an older version finds that the version has changed, and then that the schema is newer.
update writes set n = n + 1 where n = (select max(n) from writes);

-- Brokers take ids of leases in blocks.
create sequence lease_ids increment by 64;
select setval('lease_ids', (select coalesce(max(id), 0) + 1 from leases), false);

-- Locked instead of advisory locks where the server has none.
create table fences (id bigint primary key);
insert into fences values (0);
