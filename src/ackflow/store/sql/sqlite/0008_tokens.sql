-- A token ends in the last 24 bits of its lease's id, so that only tokens made by clients need an index.
-- Random entries in an index of all tokens cost one page write for each delivery.

alter table leases rename to indexed_leases;

create table leases (
    id integer primary key,
    token integer not null,
    grp integer not null,
    consumer text not null,
    acquired_at integer not null,
    expires_at integer not null,
    ended_at integer,
    n integer not null,
    lane integer,                           -- of a delivery from one lane without gaps,
    lo integer,                             -- otherwise null, and `parts` is set
    hi integer,
    number integer,                         -- earlier deliveries from the lane to the group
    parts blob,                             -- msgpack of [[lane, ranges, number], ...]
    fates blob                              -- msgpack of [[verb, at, lane, ranges], ...]
);
create unique index leases_by_token on leases (token) where token & 16777215 <> id & 16777215;

insert into leases
select id, token, grp, consumer, acquired_at, expires_at, ended_at, n, lane, lo, hi, number, parts,
    fates
from indexed_leases;
drop table indexed_leases;
