-- The trigger of `changelog init --stamps` writes stamps that describe the session. Their prefix, `provenance-session`,
-- differs from that of other stamps. Such a stamp applies only while the application has not stamped the transaction.
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text);

--> run

BEGIN;
INSERT INTO orders VALUES (1, 'unstamped');
SELECT pg_logical_emit_message(true, 'provenance-session', '{"serviceName": "psql", "context": {"session": {"user": "u"}}}');
INSERT INTO orders VALUES (2, 'session');
SELECT pg_logical_emit_message(true, 'provenance-session', '{"serviceName": "renamed"}');
INSERT INTO orders VALUES (3, 'renamed session');
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "order-api"}');
INSERT INTO orders VALUES (4, 'application');
SELECT pg_logical_emit_message(true, 'provenance-session', '{"serviceName": "psql"}');
INSERT INTO orders VALUES (5, 'application');
COMMIT;
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":1,"status":"unstamped"}}
-> {"entity": "orders", "key": "2",
    "provenance": {"apiVersion": "", "serviceName": "psql", "identifier": "", "context": {"session": {"user": "u"}}, "source": {"table": "public.orders", "op": "create", "ordinal": 4}},
    "current": {"id":2,"status":"session"}}
-> {"entity": "orders", "key": "3",
    "provenance": {"apiVersion": "", "serviceName": "renamed", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 8}},
    "current": {"id":3,"status":"renamed session"}}
-> {"entity": "orders", "key": "4",
    "provenance": {"apiVersion": "", "serviceName": "order-api", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 12}},
    "current": {"id":4,"status":"application"}}
-> {"entity": "orders", "key": "5",
    "provenance": {"apiVersion": "", "serviceName": "order-api", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 16}},
    "current": {"id":5,"status":"application"}}

-- A rollback to a savepoint takes back the stamp of the application.
BEGIN;
SAVEPOINT s;
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "undone"}');
ROLLBACK TO SAVEPOINT s;
SELECT pg_logical_emit_message(true, 'provenance-session', '{"serviceName": "psql"}');
INSERT INTO orders VALUES (6, 'session');
COMMIT;
-> {"entity": "orders", "key": "6",
    "provenance": {"apiVersion": "", "serviceName": "psql", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":6,"status":"session"}}

-- A session's stamp inside a savepoint arrives after the row that follows it.
BEGIN;
SAVEPOINT s;
SELECT pg_logical_emit_message(true, 'provenance-session', '{"serviceName": "psql"}');
RELEASE SAVEPOINT s;
INSERT INTO orders VALUES (7, 'session');
COMMIT;
-> {"entity": "orders", "key": "7",
    "provenance": {"apiVersion": "", "serviceName": "psql", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":7,"status":"session"}}
