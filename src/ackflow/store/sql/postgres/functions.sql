-- The functions of a transaction of one round trip (store/postgres/short.py). They are created when a
-- broker opens the schema and they are missing; a function that is changed gets another name, so that
-- brokers of two versions may share a schema.

-- Takes the locks of a queue, and fails unless the versions of the schema and of the queue are those
-- that the broker has cached and its time (null: any) is that of the server, to 0.1 s. Each statement
-- of a function sees what was committed before it, so the versions are read under the locks.
--
-- Then it stores the next version, `number`. The broker's last row goes, and the newest one if a
-- transaction of a user wrote it. `synced`: the commit waits for the disk.
create or replace function enter_queue_1(schema_key bigint, queue_key bigint, queue bigint,
    schema_version bigint, version bigint, at bigint, number bigint, writer bigint, own bigint,
    passed bytea, synced bigint) returns bigint language plpgsql as $$
declare
    server_time bigint;
    found_schema bigint;
    found_version bigint;
begin
    perform pg_advisory_xact_lock_shared(schema_key), pg_advisory_xact_lock(queue_key);
    server_time := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
    select (select n from writes where fence = 0 order by fence desc, n desc limit 1),
        (select n from writes where fence = queue order by fence desc, n desc limit 1)
        into found_schema, found_version;
    if found_schema <> schema_version or found_version is distinct from version then
        raise serialization_failure using
            message = 'another broker has written to the queue',
            hint = 'This is expected: the broker runs the transaction again.';
    end if;
    if abs(server_time - at) > 100000 then
        raise serialization_failure using message = 'the broker has waited for too long',
            detail = 'late', hint = 'This is expected: the broker runs the transaction again.';
    end if;
    delete from writes where fence = queue and n = any(array[own, version]) and broker in (writer, -1);
    insert into writes (fence, n, broker, hints) values (queue, number, writer, passed);
    if synced = 1 then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    return server_time;
end $$;

-- Puts on disk what was committed, once for all brokers that wait for it: one at a time has the lock, and
-- keeps it until its commit is on disk. The next one finds that its own was included, or commits. Before
-- that it waits, up to `longest` microseconds, until `expected` others have come to the lock.
-- `led`: 1 if it commits; `others`: how many came; `passed`: microseconds until then.
create or replace function share_flush_1(lock_key bigint, expected bigint, longest bigint,
    out led bigint, out others bigint, out passed bigint) language plpgsql as $$
declare
    wanted pg_lsn := pg_current_wal_insert_lsn();
    began timestamptz := clock_timestamp();
    until timestamptz;
begin
    led := 1;
    if not pg_try_advisory_xact_lock(lock_key) then
        perform pg_advisory_xact_lock(lock_key);
        expected := greatest(expected, 1);
    end if;
    if pg_current_wal_flush_lsn() >= wanted and current_setting('synchronous_standby_names') = '' then
        led := 0;
    end if;
    until := clock_timestamp() + longest * interval '1 microsecond';
    loop
        others := case when led = 1 and expected > 0 then (select count(*) from pg_locks
            where locktype = 'advisory' and not granted and objsubid = 1
                and classid::bigint << 32 | objid::bigint = lock_key
                and database = (select oid from pg_database where datname = current_database()))
            else 0 end;
        exit when led = 0 or others >= expected or clock_timestamp() >= until;
        perform pg_sleep(longest / 8000000.0);
    end loop;
    passed := (extract(epoch from clock_timestamp() - began) * 1000000)::bigint;
    if led = 1 then
        perform set_config('synchronous_commit', 'on', true);
        perform pg_logical_emit_message(true, 'ackflow', '');
    end if;
end $$;
