-- If a savepoint separates a stamp from the row that follows it in the log, PostgreSQL may deliver the stamp after the
-- row. PostgreSQL sorts the two by position. The position of a stamp is its end, and the position of a row is its
-- beginning, so the two can be equal. The stamp is valid for that row nevertheless.
--# mysql = true
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text);
ALTER TABLE orders REPLICA IDENTITY FULL;

--> run

INSERT INTO orders VALUES (1, 'NEW'), (2, 'NEW');
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":1,"status":"NEW"}}
-> {"entity": "orders", "key": "2", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":2,"status":"NEW"}}

-- The stamp is written inside a savepoint and the rows outside it: the first row arrives before the stamp.
BEGIN;
SAVEPOINT s;
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "order-api", "identifier": "req-1"}');
RELEASE SAVEPOINT s;
UPDATE orders SET status = 'PAID';
COMMIT;
-> {"entity": "orders", "key": "1",
    "provenance": {"apiVersion": "", "serviceName": "order-api", "identifier": "req-1", "source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":1,"status":"PAID"}, "original": {"id":1,"status":"NEW"}}
-> {"entity": "orders", "key": "2",
    "provenance": {"apiVersion": "", "serviceName": "order-api", "identifier": "req-1", "source": {"table": "public.orders", "op": "update", "ordinal": 4}},
    "current": {"id":2,"status":"PAID"}, "original": {"id":2,"status":"NEW"}}

-- The stamp is written outside a savepoint and the rows inside it.
BEGIN;
INSERT INTO orders VALUES (3, 'before');
SAVEPOINT a;
INSERT INTO orders VALUES (4, 'before');
RELEASE SAVEPOINT a;
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "order-api", "identifier": "req-2"}');
SAVEPOINT b;
UPDATE orders SET status = 'SENT';
RELEASE SAVEPOINT b;
COMMIT;
-> {"entity": "orders", "key": "3", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":3,"status":"before"}}
-> {"entity": "orders", "key": "4", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":4,"status":"before"}}
-> {"entity": "orders", "key": "1",
    "provenance": {"apiVersion": "", "serviceName": "order-api", "identifier": "req-2", "source": {"table": "public.orders", "op": "update", "ordinal": 4}},
    "current": {"id":1,"status":"SENT"}, "original": {"id":1,"status":"PAID"}}
-> {"entity": "orders", "key": "2",
    "provenance": {"apiVersion": "", "serviceName": "order-api", "identifier": "req-2", "source": {"table": "public.orders", "op": "update", "ordinal": 8}},
    "current": {"id":2,"status":"SENT"}, "original": {"id":2,"status":"PAID"}}
-> {"entity": "orders", "key": "3",
    "provenance": {"apiVersion": "", "serviceName": "order-api", "identifier": "req-2", "source": {"table": "public.orders", "op": "update", "ordinal": 10}},
    "current": {"id":3,"status":"SENT"}, "original": {"id":3,"status":"before"}}
-> {"entity": "orders", "key": "4",
    "provenance": {"apiVersion": "", "serviceName": "order-api", "identifier": "req-2", "source": {"table": "public.orders", "op": "update", "ordinal": 12}},
    "current": {"id":4,"status":"SENT"}, "original": {"id":4,"status":"before"}}
