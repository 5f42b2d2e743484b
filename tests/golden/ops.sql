-- The life of a row: read before the stream, created, changed, deleted. REPLICA IDENTITY FULL makes all originals
-- whole.
--# mysql = true
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text, amount numeric(8, 2), paid int DEFAULT 0);
ALTER TABLE orders REPLICA IDENTITY FULL;
INSERT INTO orders VALUES (1, 'NEW', 12.5, NULL), (2, NULL, NULL, NULL);

--> run
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "read", "ordinal": 2}},
    "current": {"id":1,"status":"NEW","amount":"12.50","paid":null}}
-> {"entity": "orders", "key": "2", "provenance": {"source": {"table": "public.orders", "op": "read", "ordinal": 4}},
    "current": {"id":2,"status":null,"amount":null,"paid":null}}

INSERT INTO orders (id, status, amount) VALUES (3, 'NEW', 13.50);
-> {"entity": "orders", "key": "3", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":3,"status":"NEW","amount":"13.50","paid":0}}

UPDATE orders SET status = 'PAID', paid = 1 WHERE id = 3;
-> {"entity": "orders", "key": "3", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":3,"status":"PAID","amount":"13.50","paid":1},
    "original": {"id":3,"status":"NEW","amount":"13.50","paid":0}}

DELETE FROM orders WHERE id IN (1, 3);
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "delete", "ordinal": 0}},
    "current": null, "original": {"id":1,"status":"NEW","amount":"12.50","paid":null}}
-> {"entity": "orders", "key": "3", "provenance": {"source": {"table": "public.orders", "op": "delete", "ordinal": 2}},
    "current": null, "original": {"id":3,"status":"PAID","amount":"13.50","paid":1}}

-- The rows of one statement have different ordinals, in the order of the log.
INSERT INTO orders (id, status, amount) VALUES (4, 'A', 1), (5, 'B', 2), (6, 'C', 3);
-> {"entity": "orders", "key": "4", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":4,"status":"A","amount":"1.00","paid":0}}
-> {"entity": "orders", "key": "5", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":5,"status":"B","amount":"2.00","paid":0}}
-> {"entity": "orders", "key": "6", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 4}},
    "current": {"id":6,"status":"C","amount":"3.00","paid":0}}

-- The three changes of a transaction are published together, after its commit.
BEGIN;
INSERT INTO orders (id, status, amount) VALUES (7, 'NEW', 1);
UPDATE orders SET amount = 2 WHERE id = 7;
DELETE FROM orders WHERE id = 7;
COMMIT;
-> {"entity": "orders", "key": "7", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":7,"status":"NEW","amount":"1.00","paid":0}}
-> {"entity": "orders", "key": "7", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 2}},
    "current": {"id":7,"status":"NEW","amount":"2.00","paid":0},
    "original": {"id":7,"status":"NEW","amount":"1.00","paid":0}}
-> {"entity": "orders", "key": "7", "provenance": {"source": {"table": "public.orders", "op": "delete", "ordinal": 4}},
    "current": null, "original": {"id":7,"status":"NEW","amount":"2.00","paid":0}}

-- A transaction that was rolled back is not published.
BEGIN;
INSERT INTO orders (id, status, amount) VALUES (8, 'NEW', 1);
ROLLBACK;
