-- With the policy `missing = "stop"`, the service stops at a change without a stamp. An operator then decides how it
-- continues.
--# mysql = true
--# [entities.orders]
--# table = "public.orders"
--# [entities.orders.provenance]
--# missing = "stop"
--# [entities.note]
--# table = "public.note"

CREATE TABLE orders (id int PRIMARY KEY);
CREATE TABLE note (id int PRIMARY KEY);
INSERT INTO orders VALUES (1);

-- Rows that are read from the table need no stamp.
--> run
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "read", "ordinal": 2}},
    "current": {"id":1}}

BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v2", "serviceName": "order-api", "identifier": "req-1"}');
INSERT INTO orders VALUES (2);
COMMIT;
-> {"entity": "orders", "key": "2",
    "provenance": {"apiVersion": "v2", "serviceName": "order-api", "identifier": "req-1", "source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":2}}

-- The policy is valid only for its own entity.
INSERT INTO note VALUES (1);
-> {"entity": "note", "key": "1", "provenance": {"source": {"table": "public.note", "op": "create", "ordinal": 0}},
    "current": {"id":1}}

INSERT INTO orders VALUES (3), (4);
-> {"stop": "a change of the table public.orders has no provenance stamp"}

-- The operator's decision is valid until the transaction ends.
--> accept default
-> {"entity": "orders", "key": "3", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":3}}
-> {"entity": "orders", "key": "4", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":4}}

DELETE FROM orders WHERE id = 1;
-> {"stop": "a change of the table public.orders has no provenance stamp"}

--> accept skip

DELETE FROM orders WHERE id = 2;
-> {"stop": "a change of the table public.orders has no provenance stamp"}

--> accept dead-letter
-> {"entity": "dead", "key": "orders", "provenance": {"source": {"table": "public.orders", "op": "delete", "ordinal": 0}},
    "current": null, "original": {"id":2}}

BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v2", "serviceName": "order-api", "identifier": "req-2"}');
INSERT INTO orders VALUES (5);
COMMIT;
-> {"entity": "orders", "key": "5",
    "provenance": {"apiVersion": "v2", "serviceName": "order-api", "identifier": "req-2", "source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":5}}
