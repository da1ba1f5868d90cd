-- Small payloads lie in the header of their segment: a push of one message writes a page less, and
-- a pop of many such messages is one query. `body` is 0 then.

alter table segments add column ends blob;
alter table segments add column data blob;
alter table segments add column rest blob;
