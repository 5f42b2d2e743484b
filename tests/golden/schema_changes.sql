-- Columns are added, dropped, renamed and retyped while the changelog runs. Each change takes effect with the table's
-- next row.
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text);
ALTER TABLE orders REPLICA IDENTITY FULL;
INSERT INTO orders VALUES (1, 'NEW');

--> run
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "read", "ordinal": 2}},
    "current": {"id":1,"status":"NEW"}}

-- A column is added. The server sends no row because of this, and the next original already has the column's default.
-- The server had not described the table to this service before, so the service cannot say what changed.
ALTER TABLE orders ADD COLUMN paid boolean NOT NULL DEFAULT false;

UPDATE orders SET paid = true WHERE id = 1;
-> {"entity": "orders", "key": "1", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":1,"status":"NEW","paid":true}, "original": {"id":1,"status":"NEW","paid":false}}

ALTER TABLE orders RENAME COLUMN status TO state;

INSERT INTO orders VALUES (2, 'NEW', false);
-> {"columns": {"table": "public.orders", "added": ["state"], "dropped": ["status"]}}
-> {"entity": "orders", "key": "2", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":2,"state":"NEW","paid":false}}

ALTER TABLE orders ALTER COLUMN id TYPE bigint, ALTER COLUMN paid TYPE text USING CASE WHEN paid THEN 'yes' ELSE 'no' END;

UPDATE orders SET state = 'PAID' WHERE id = 2;
-> {"columns": {"table": "public.orders", "retyped": ["id", "paid"]}}
-> {"entity": "orders", "key": "2", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":2,"state":"PAID","paid":"no"}, "original": {"id":2,"state":"NEW","paid":"no"}}

ALTER TABLE orders DROP COLUMN paid;

UPDATE orders SET state = 'SENT' WHERE id = 2;
-> {"columns": {"table": "public.orders", "dropped": ["paid"]}}
-> {"entity": "orders", "key": "2", "provenance": {"source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":2,"state":"SENT"}, "original": {"id":2,"state":"PAID"}}

-- Inside a transaction, each row has the columns that the table had when the row was written.
BEGIN;
INSERT INTO orders VALUES (3, 'before');
ALTER TABLE orders ADD COLUMN note text;
INSERT INTO orders VALUES (4, 'after', 'with a note');
ALTER TABLE orders RENAME COLUMN note TO remark;
INSERT INTO orders VALUES (5, 'later', 'with a remark');
COMMIT;
-> {"columns": {"table": "public.orders", "added": ["note"]}}
-> {"columns": {"table": "public.orders", "added": ["remark"], "dropped": ["note"]}}
-> {"entity": "orders", "key": "3", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":3,"state":"before"}}
-> {"entity": "orders", "key": "4", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":4,"state":"after","note":"with a note"}}
-> {"entity": "orders", "key": "5", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 4}},
    "current": {"id":5,"state":"later","remark":"with a remark"}}

-- After a restart, the server describes the table again. The description is the same as before, so no change of columns
-- is reported.
--> restart

INSERT INTO orders VALUES (6, 'after a restart', NULL);
-> {"entity": "orders", "key": "6", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":6,"state":"after a restart","remark":null}}
