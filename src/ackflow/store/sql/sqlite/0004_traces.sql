-- Traces: events that consumers record about a message while they work on it.

create table traces (
    id integer primary key autoincrement,
    partition integer not null,
    txid text not null,                     -- of the message
    lane integer not null,
    seq integer not null,
    grp text,                               -- the name of a group, which may be deleted
    consumer text,
    event text not null,
    data blob not null,                     -- JSON
    at integer not null
);
create index traces_of_message on traces (partition, txid, id);
create index traces_by_time on traces (at);

create table trace_names (
    name text not null,
    trace integer not null,
    primary key (name, trace)
) without rowid;
create index names_of_trace on trace_names (trace);
