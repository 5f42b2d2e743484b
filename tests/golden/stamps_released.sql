-- The stamp of a released savepoint.
--# ordinals = false
--# mysql = true
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text);
ALTER TABLE orders REPLICA IDENTITY FULL;

--> run

-- A released savepoint's stamp goes on. The server delivers it behind the row (it goes by the stamp's end, which is where
-- the row's record begins), unless it logs a record of its own between the two: the ordinals differ, the stamp holds.
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

-- So does that of a later one, in the place of what the first one left.
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
