-- Rows and stamps that a rollback to a savepoint has undone are not published.
--# mysql = true
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text);
ALTER TABLE orders REPLICA IDENTITY FULL;

--> run

BEGIN;
INSERT INTO orders VALUES (1, 'kept');
SAVEPOINT a;
INSERT INTO orders VALUES (2, 'dropped');
ROLLBACK TO a;
INSERT INTO orders VALUES (3, 'kept');
COMMIT;
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":1,"status":"kept"}}
-> {"entity": "orders", "key": "3", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":3,"status":"kept"}}

-- After a savepoint is released, the rows that were written inside it are part of the transaction.
BEGIN;
SAVEPOINT a;
INSERT INTO orders VALUES (4, 'kept');
RELEASE SAVEPOINT a;
UPDATE orders SET status = 'kept too' WHERE id = 4;
COMMIT;
-> {"entity": "orders", "key": "4", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":4,"status":"kept"}}
-> {"entity": "orders", "key": "4", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 2}},
    "current": {"id":4,"status":"kept too"}, "original": {"id":4,"status":"kept"}}

-- The rollback to the savepoint takes back the inner stamp and its rows. After that, the outer stamp is valid again.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "outer", "identifier": "1"}');
SAVEPOINT a;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "inner", "identifier": "2"}');
INSERT INTO orders VALUES (5, 'dropped');
ROLLBACK TO a;
INSERT INTO orders VALUES (6, 'by outer');
COMMIT;
-> {"entity": "orders", "key": "6",
    "provenance": {"apiVersion": "v1", "serviceName": "outer", "identifier": "1", "source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":6,"status":"by outer"}}

-- Savepoints within savepoints.
BEGIN;
SAVEPOINT a;
INSERT INTO orders VALUES (8, 'kept');
SAVEPOINT b;
INSERT INTO orders VALUES (9, 'dropped');
SAVEPOINT c;
INSERT INTO orders VALUES (10, 'dropped');
RELEASE SAVEPOINT c;
ROLLBACK TO b;
INSERT INTO orders VALUES (11, 'kept');
COMMIT;
-> {"entity": "orders", "key": "8", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":8,"status":"kept"}}
-> {"entity": "orders", "key": "11", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":11,"status":"kept"}}

-- A stamp that is set after the savepoint is valid only for later rows, not for earlier ones. It stays valid after the
-- savepoint is released.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "outer", "identifier": "1"}');
INSERT INTO orders VALUES (20, 'by outer');
SAVEPOINT a;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "inner", "identifier": "2"}');
INSERT INTO orders VALUES (21, 'by inner');
RELEASE SAVEPOINT a;
INSERT INTO orders VALUES (22, 'by inner'), (23, 'by inner');
COMMIT;
-> {"entity": "orders", "key": "20",
    "provenance": {"apiVersion": "v1", "serviceName": "outer", "identifier": "1", "source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":20,"status":"by outer"}}
-> {"entity": "orders", "key": "21",
    "provenance": {"apiVersion": "v1", "serviceName": "inner", "identifier": "2", "source": {"table": "public.orders", "op": "create", "ordinal": 6}},
    "current": {"id":21,"status":"by inner"}}
-> {"entity": "orders", "key": "22",
    "provenance": {"apiVersion": "v1", "serviceName": "inner", "identifier": "2", "source": {"table": "public.orders", "op": "create", "ordinal": 8}},
    "current": {"id":22,"status":"by inner"}}
-> {"entity": "orders", "key": "23",
    "provenance": {"apiVersion": "v1", "serviceName": "inner", "identifier": "2", "source": {"table": "public.orders", "op": "create", "ordinal": 10}},
    "current": {"id":23,"status":"by inner"}}
