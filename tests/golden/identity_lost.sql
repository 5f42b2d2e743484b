-- The replica identity lacks the entity's key. So the log has the keys of new rows, but not of old rows.
--# [entities.orders]
--# table = "public.orders"
--# key = ["code"]

CREATE TABLE orders (id int PRIMARY KEY, code text NOT NULL UNIQUE, status text);
ALTER TABLE orders REPLICA IDENTITY FULL;

--> run

-- Inserts are published under any identity. Under NOTHING, the server refuses updates and deletes.
ALTER TABLE orders REPLICA IDENTITY NOTHING;
INSERT INTO orders VALUES (1, 'a', 'NEW'), (2, 'b', 'NEW');
-> {"entity": "orders", "key": "a", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":1,"code":"a","status":"NEW"}}
-> {"entity": "orders", "key": "b", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":2,"code":"b","status":"NEW"}}

-- Here the identity is the primary key, which is not the entity's key. So after an update, nobody knows whether the row
-- had another entity key before.
ALTER TABLE orders REPLICA IDENTITY DEFAULT;
INSERT INTO orders VALUES (3, 'c', 'NEW');
-> {"entity": "orders", "key": "c", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":3,"code":"c","status":"NEW"}}
UPDATE orders SET status = 'PAID' WHERE id = 1;
-> {"stop": "the log holds no value for the key or partition column code of the table public.orders"}

ALTER TABLE orders REPLICA IDENTITY FULL;
--> accept dead-letter
-> {"entity": "dead", "key": "orders", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":1,"code":"a","status":"PAID"}}

-- Of the old row, the log has only the primary key.
ALTER TABLE orders REPLICA IDENTITY DEFAULT;
UPDATE orders SET id = 20, code = 'B' WHERE id = 2;
-> {"stop": "the log holds no value for the key or partition column code of the table public.orders"}

ALTER TABLE orders REPLICA IDENTITY FULL;
--> accept dead-letter
-> {"entity": "dead", "key": "orders",
    "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 0, "unavailableOriginal": ["code", "status"]}},
    "current": {"id":20,"code":"B","status":"NEW"}, "original": {"id":2}}

ALTER TABLE orders REPLICA IDENTITY DEFAULT;
DELETE FROM orders WHERE id = 3;
-> {"stop": "the log holds no value for the key or partition column code of the table public.orders"}

ALTER TABLE orders REPLICA IDENTITY FULL;
--> accept skip

UPDATE orders SET code = 'A' WHERE id = 1;
-> {"entity": "orders", "key": "a", "movedTo": {"key": "A"},
    "provenance": {"source": {"table": "public.orders", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":1,"code":"a","status":"PAID"}}
-> {"entity": "orders", "key": "A", "movedFrom": {"key": "a"},
    "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 1}},
    "current": {"id":1,"code":"A","status":"PAID"}}
