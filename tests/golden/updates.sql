-- Statements that PostgreSQL logs as updates.
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text, amount numeric(8, 2));
ALTER TABLE orders REPLICA IDENTITY FULL;

INSERT INTO orders VALUES (3, 'PAID', 13.50), (4, 'A', 1);

--> run
-> {"entity": "orders", "key": "3", "provenance": {"source": {"table": "public.orders", "op": "read", "ordinal": 2}},
    "current": {"id":3,"status":"PAID","amount":"13.50"}}
-> {"entity": "orders", "key": "4", "provenance": {"source": {"table": "public.orders", "op": "read", "ordinal": 4}},
    "current": {"id":4,"status":"A","amount":"1.00"}}

-- An update that changes nothing is published as an update.
UPDATE orders SET status = status WHERE id = 3;
-> {"entity": "orders", "key": "3", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":3,"status":"PAID","amount":"13.50"}, "original": {"id":3,"status":"PAID","amount":"13.50"}}

-- An upsert is published as what it did: an insert or an update.
INSERT INTO orders VALUES (4, 'D', 9) ON CONFLICT (id) DO UPDATE SET status = excluded.status;
-> {"entity": "orders", "key": "4", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":4,"status":"D","amount":"1.00"}, "original": {"id":4,"status":"A","amount":"1.00"}}
