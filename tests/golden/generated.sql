-- Stored generated columns are published from PostgreSQL 18 on. Virtual generated columns are never in the log, so
-- they are not published.
--# server = 18
--# [entities.line]
--# table = "public.line"
--# [entities.virtual]
--# table = "public.virtual"

CREATE TABLE line (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, price numeric, count int,
  total numeric GENERATED ALWAYS AS (price * count) STORED);
ALTER TABLE line REPLICA IDENTITY FULL;
CREATE TABLE virtual (id int PRIMARY KEY, price numeric, doubled numeric GENERATED ALWAYS AS (price * 2) VIRTUAL);
INSERT INTO line (price, count) VALUES (1.50, 2);
INSERT INTO virtual VALUES (1, 1);

--> run
-> {"entity": "line", "key": "1", "provenance": {"source": {"table": "public.line", "op": "read", "ordinal": 2}},
    "current": {"id":1,"price":"1.50","count":2,"total":"3.00"}}
-> {"entity": "virtual", "key": "1", "provenance": {"source": {"table": "public.virtual", "op": "read", "ordinal": 2}},
    "current": {"id":1,"price":"1"}}

INSERT INTO line (price, count) VALUES (2, 3);
-> {"entity": "line", "key": "2", "provenance": {"source": {"table": "public.line", "op": "create", "ordinal": 0}},
    "current": {"id":2,"price":"2","count":3,"total":"6"}}

UPDATE line SET count = 4 WHERE id = 2;
-> {"entity": "line", "key": "2", "provenance": {"source": {"table": "public.line", "op": "update", "ordinal": 0}},
    "current": {"id":2,"price":"2","count":4,"total":"8"}, "original": {"id":2,"price":"2","count":3,"total":"6"}}

DELETE FROM line WHERE id = 1;
-> {"entity": "line", "key": "1", "provenance": {"source": {"table": "public.line", "op": "delete", "ordinal": 0}},
    "current": null, "original": {"id":1,"price":"1.50","count":2,"total":"3.00"}}

INSERT INTO virtual VALUES (2, 2);
-> {"entity": "virtual", "key": "2", "provenance": {"source": {"table": "public.virtual", "op": "create", "ordinal": 0}},
    "current": {"id":2,"price":"2"}}

UPDATE virtual SET price = 3 WHERE id = 2;
-> {"entity": "virtual", "key": "2", "provenance": {"source": {"table": "public.virtual", "op": "update", "ordinal": 0}},
    "current": {"id":2,"price":"3"}}
