-- The statements of SQLite only.

-- name: database_version
select 'SQLite ' || sqlite_version()
-- name: get_txids
select t.txid, t.lane, t.seq, t.at from json_each(?2) j
cross join txids t on t.partition = ?1 and t.txid = j.value
-- name: put_txids
insert or replace into txids
select ?1, json_extract(value, '$[0]'), ?2, json_extract(value, '$[1]'), ?3 from json_each(?4)
