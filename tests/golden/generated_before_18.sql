-- Before PostgreSQL 18, the log lacks generated columns. The configuration excludes such a column by name, so the
-- messages are the same on all versions.
--# [entities.line]
--# table = "public.line"
--# exclude_columns = ["total"]

CREATE TABLE line (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, price numeric, count int,
  total numeric GENERATED ALWAYS AS (price * count) STORED);
ALTER TABLE line REPLICA IDENTITY FULL;
INSERT INTO line (price, count) VALUES (1.50, 2);

--> run
-> {"entity": "line", "key": "1", "provenance": {"source": {"table": "public.line", "op": "read", "ordinal": 2}},
    "current": {"id":1,"price":"1.50","count":2}}

INSERT INTO line (price, count) VALUES (2, 3);
-> {"entity": "line", "key": "2", "provenance": {"source": {"table": "public.line", "op": "create", "ordinal": 0}},
    "current": {"id":2,"price":"2","count":3}}

UPDATE line SET count = 4 WHERE id = 2;
-> {"entity": "line", "key": "2", "provenance": {"source": {"table": "public.line", "op": "update", "ordinal": 0}},
    "current": {"id":2,"price":"2","count":4}, "original": {"id":2,"price":"2","count":3}}

DELETE FROM line WHERE id = 1;
-> {"entity": "line", "key": "1", "provenance": {"source": {"table": "public.line", "op": "delete", "ordinal": 0}},
    "current": null, "original": {"id":1,"price":"1.50","count":2}}
