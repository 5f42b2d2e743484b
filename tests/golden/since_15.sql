-- New in PostgreSQL 15: MERGE, and the octal text of a value above ASCII in a column of type "char".
--# server = 15
--# [entities.orders]
--# table = "public.orders"

CREATE TABLE orders (id int PRIMARY KEY, status text, mark "char");
ALTER TABLE orders REPLICA IDENTITY FULL;
INSERT INTO orders VALUES (5, 'B', '\377');

--> run
-> {"entity": "orders", "key": "5", "provenance": {"source": {"table": "public.orders", "op": "read", "ordinal": 2}},
    "current": {"id":5,"status":"B","mark":"\\377"}}

MERGE INTO orders USING (VALUES (5), (9)) AS wanted (id) ON orders.id = wanted.id
  WHEN MATCHED THEN DELETE
  WHEN NOT MATCHED THEN INSERT (id, status) VALUES (wanted.id, 'MERGED');
-> {"entity": "orders", "key": "5", "provenance": {"source": {"table": "public.orders", "op": "delete", "ordinal": 0}},
    "current": null, "original": {"id":5,"status":"B","mark":"\\377"}}
-> {"entity": "orders", "key": "9", "provenance": {"source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":9,"status":"MERGED","mark":null}}
