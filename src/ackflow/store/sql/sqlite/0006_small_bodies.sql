-- Small payloads are stored in the row of their segment, and `body` is 0: a push of one message writes
-- one page less, and a pop of many such messages is one query.

alter table segments add column ends blob;
alter table segments add column data blob;
alter table segments add column rest blob;
