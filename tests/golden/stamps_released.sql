-- A stamp is written inside a savepoint, and the savepoint is then released.
--# ordinals = false
--# mysql = true
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text);
ALTER TABLE orders REPLICA IDENTITY FULL;

--> run

-- The stamp stays valid after its savepoint is released. The server sorts the stamp and the row by position. The
-- position of the stamp is its end. If the row's record begins there, the server may deliver the stamp after the row.
-- If the server has logged a record of its own between the two, it delivers the stamp first. So the ordinals vary, but
-- the stamp is valid in both cases.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "outer", "identifier": "1"}');
SAVEPOINT a;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "inner", "identifier": "2"}');
RELEASE SAVEPOINT a;
INSERT INTO orders VALUES (7, 'by inner');
COMMIT;
-> {"entity": "orders", "key": "7",
    "provenance": {"apiVersion": "v1", "serviceName": "inner", "identifier": "2", "source": {"table": "public.orders", "op": "create"}},
    "current": {"id":7,"status":"by inner"}}

-- The stamp of a second savepoint stays valid as well. It replaces the stamp of the first one.
BEGIN;
SAVEPOINT a;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "inner", "identifier": "2"}');
RELEASE SAVEPOINT a;
SAVEPOINT b;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "third", "identifier": "3"}');
RELEASE SAVEPOINT b;
INSERT INTO orders VALUES (24, 'by third');
COMMIT;
-> {"entity": "orders", "key": "24",
    "provenance": {"apiVersion": "v1", "serviceName": "third", "identifier": "3", "source": {"table": "public.orders", "op": "create"}},
    "current": {"id":24,"status":"by third"}}
