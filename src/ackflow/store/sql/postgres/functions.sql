-- The functions of a transaction of one round trip (store/postgres/short.py). They are created when a
-- broker opens the schema and they are missing; a function that is changed gets another name, so that
-- brokers of two versions may share a schema.

-- Takes the locks of a queue, and fails unless the versions of the schema and of the queue are those
-- that the broker has cached and its time (null: any) is that of the server, to 0.1 s. Each statement
-- of a function sees what was committed before it, so the versions are read under the locks.
create function enter_queue_1(schema_key bigint, queue_key bigint, queue bigint, schema_version bigint,
    version bigint, at bigint) returns bigint language plpgsql as $$
declare
    server_time bigint;
begin
    perform pg_advisory_xact_lock_shared(schema_key), pg_advisory_xact_lock(queue_key);
    server_time := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
    if (select n from writes where fence = 0 order by fence desc, n desc limit 1) <> schema_version
        or coalesce((select n from writes where fence = queue
            order by fence desc, n desc limit 1), 0) <> version
        or abs(server_time - at) > 100000
    then
        raise serialization_failure using
            message = 'another broker has written to the queue',
            hint = 'This is expected: the broker runs the transaction again.';
    end if;
    return server_time;
end $$;

-- Stores the new version of a queue; the broker's last row goes, and the newest one if a transaction of
-- a user wrote it. `synced`: the commit waits for the disk.
create function leave_queue_1(queue bigint, version bigint, writer bigint, own bigint, passed bytea,
    newest bigint, synced bigint) returns void language plpgsql as $$
begin
    delete from writes where fence = queue and n = any(array[own, newest]) and broker in (writer, -1);
    insert into writes (fence, n, broker, hints) values (queue, version, writer, passed);
    if synced = 1 then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end $$;
