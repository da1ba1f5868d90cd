-- Operations: access tokens for HTTP, and counters.

create table tokens (
    id integer primary key autoincrement,
    name text not null,
    digest blob not null unique,            -- SHA-256 of the token, which is stored nowhere
    grants text not null,                   -- JSON of [[role, queue pattern], ...]
    created_at integer not null,
    expires_at integer,
    revoked_at integer                      -- kept: revoking the last one opens nothing
);
create unique index tokens_by_name on tokens (name) where revoked_at is null;

create table tallies (
    grp integer not null,                   -- a group; minus a queue; 0: all that was deleted
    name text not null,
    n integer not null,
    primary key (grp, name)
) without rowid;
