-- Only the rows of a table that meet a condition are published.
--# server = 15
--# [entities.orders]
--# table = "public.orders"
--# where = "status <> 'draft'"

CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL);
ALTER TABLE orders REPLICA IDENTITY FULL;
INSERT INTO orders VALUES (1, 'draft'), (2, 'NEW');

--> run
-> {"entity": "orders", "key": "2", "provenance": {"source": {"table": "public.orders", "op": "read", "ordinal": 2}},
    "current": {"id":2,"status":"NEW"}}

-- If an update makes a row meet the condition, a create is published. If the row no longer meets it, a delete is.
UPDATE orders SET status = 'NEW' WHERE id = 1;
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":1,"status":"NEW"}}

UPDATE orders SET status = 'PAID' WHERE id = 1;
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":1,"status":"PAID"}, "original": {"id":1,"status":"NEW"}}

UPDATE orders SET status = 'draft' WHERE id = 1;
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "delete", "ordinal": 0}},
    "current": null, "original": {"id":1,"status":"PAID"}}

DELETE FROM orders WHERE id = 1;

DELETE FROM orders WHERE id = 2;
-> {"entity": "orders", "key": "2", "provenance": {"source": {"table": "public.orders", "op": "delete", "ordinal": 0}},
    "current": null, "original": {"id":2,"status":"NEW"}}
