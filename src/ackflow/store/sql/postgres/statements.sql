-- What is worded for PostgreSQL alone.

-- name: get_txids
select t.txid, t.lane, t.seq, t.at from jsonb_array_elements_text(?2::jsonb) as j
join txids t on t.partition = ?1 and t.txid = j.value
-- name: put_txids
insert into txids
select ?1, value ->> 0, ?2, (value ->> 1)::bigint, ?3 from jsonb_array_elements(?4::jsonb)
on conflict (partition, txid) do update
set lane = excluded.lane, seq = excluded.seq, at = excluded.at
