-- When a table loses the key column of its entity, the service first publishes the earlier changes, and then stops.
--# mysql = true
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text);

--> run

INSERT INTO orders VALUES (1, 'NEW');
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":1,"status":"NEW"}}

ALTER TABLE orders DROP COLUMN id;
INSERT INTO orders VALUES ('no key');
-> {"columns": {"table": "public.orders", "dropped": ["id"]}}
-> {"stop": "entity orders: key column id is no longer in the table public.orders"}
