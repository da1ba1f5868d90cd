-- Operations: access tokens for HTTP, and counters.

create table tokens (
    id integer primary key autoincrement,
    name text not null,
    digest blob not null unique,            -- SHA-256 of the token; the token itself is not stored
    grants text not null,                   -- JSON of [[role, queue pattern], ...]
    created_at integer not null,
    expires_at integer,
    revoked_at integer                      -- kept, so that revoking the last token grants no access
);
create unique index tokens_by_name on tokens (name) where revoked_at is null;

create table tallies (
    grp integer not null,                   -- a group; negative: a queue; 0: everything deleted
    name text not null,
    n integer not null,
    primary key (grp, name)
) without rowid;
