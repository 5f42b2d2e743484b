-- Messages in PostgreSQL's log that are not stamps.
--# [entities.orders]
--# table = "public.orders"
--# [provenance.default]
--# apiVersion = "none"
--# serviceName = "by hand"

CREATE TABLE orders (id int PRIMARY KEY, status text);
ALTER TABLE orders REPLICA IDENTITY FULL;

--> run

-- A message that is not transactional is ignored. It is not a record of the transaction, so it has no ordinal.
BEGIN;
SELECT pg_logical_emit_message(false, 'provenance', '{"apiVersion": "v2", "serviceName": "order-api", "identifier": "x"}');
INSERT INTO orders VALUES (10, 'not transactional');
COMMIT;
-> {"entity": "orders", "key": "10",
    "provenance": {"apiVersion": "none", "serviceName": "by hand", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":10,"status":"not transactional"}}

-- A message with another prefix is ignored as well, but it is a record of the transaction, so the row after it has
-- ordinal 2.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenanc', '{"serviceName": "order-api"}');
INSERT INTO orders VALUES (9, 'another prefix');
COMMIT;
-> {"entity": "orders", "key": "9",
    "provenance": {"apiVersion": "none", "serviceName": "by hand", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":9,"status":"another prefix"}}
