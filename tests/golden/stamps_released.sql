-- The stamp of a released savepoint.
--# ordinals = false
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
RELEASE a;
INSERT INTO orders VALUES (7, 'by inner');
COMMIT;
-> {"entity": "orders", "key": "7",
    "provenance": {"apiVersion": "v1", "serviceName": "inner", "identifier": "2", "source": {"table": "public.orders", "op": "create"}},
    "current": {"id":7,"status":"by inner"}}

-- The stamp of the savepoint is for what comes after it, never for a row before it.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "outer", "identifier": "1"}');
INSERT INTO orders VALUES (20, 'by outer');
SAVEPOINT a;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "inner", "identifier": "2"}');
INSERT INTO orders VALUES (21, 'by inner');
RELEASE a;
INSERT INTO orders VALUES (22, 'by inner'), (23, 'by inner');
SAVEPOINT b;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "third", "identifier": "3"}');
RELEASE b;
INSERT INTO orders VALUES (24, 'by third');
COMMIT;
-> {"entity": "orders", "key": "20",
    "provenance": {"apiVersion": "v1", "serviceName": "outer", "identifier": "1", "source": {"table": "public.orders", "op": "create"}},
    "current": {"id":20,"status":"by outer"}}
-> {"entity": "orders", "key": "21",
    "provenance": {"apiVersion": "v1", "serviceName": "inner", "identifier": "2", "source": {"table": "public.orders", "op": "create"}},
    "current": {"id":21,"status":"by inner"}}
-> {"entity": "orders", "key": "22",
    "provenance": {"apiVersion": "v1", "serviceName": "inner", "identifier": "2", "source": {"table": "public.orders", "op": "create"}},
    "current": {"id":22,"status":"by inner"}}
-> {"entity": "orders", "key": "23",
    "provenance": {"apiVersion": "v1", "serviceName": "inner", "identifier": "2", "source": {"table": "public.orders", "op": "create"}},
    "current": {"id":23,"status":"by inner"}}
-> {"entity": "orders", "key": "24",
    "provenance": {"apiVersion": "v1", "serviceName": "third", "identifier": "3", "source": {"table": "public.orders", "op": "create"}},
    "current": {"id":24,"status":"by third"}}
