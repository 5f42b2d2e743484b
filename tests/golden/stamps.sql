-- A stamp says who made a change. The application writes the stamp inside its own transaction.
--# mysql = true
--# [entities.orders]
--# table = "public.orders"
--# [provenance.default]
--# apiVersion = "none"
--# serviceName = "by hand"

CREATE TABLE orders (id int PRIMARY KEY, status text);
ALTER TABLE orders REPLICA IDENTITY FULL;

--> run

-- Without a stamp, the message has the configured default.
INSERT INTO orders VALUES (1, 'NEW');
-> {"entity": "orders", "key": "1",
    "provenance": {"apiVersion": "none", "serviceName": "by hand", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":1,"status":"NEW"}}

-- The stamp is also a record of the transaction, so the row's ordinal is 2.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v2", "serviceName": "order-api", "identifier": "req-1"}');
UPDATE orders SET status = 'PAID';
COMMIT;
-> {"entity": "orders", "key": "1",
    "provenance": {"apiVersion": "v2", "serviceName": "order-api", "identifier": "req-1", "source": {"table": "public.orders", "op": "update", "ordinal": 2}},
    "current": {"id":1,"status":"PAID"}, "original": {"id":1,"status":"NEW"}}

-- The stamp ends with its transaction.
UPDATE orders SET status = 'SENT';
-> {"entity": "orders", "key": "1",
    "provenance": {"apiVersion": "none", "serviceName": "by hand", "identifier": "", "source": {"table": "public.orders", "op": "update", "ordinal": 0}},
    "current": {"id":1,"status":"SENT"}, "original": {"id":1,"status":"PAID"}}

-- A stamp is valid for the rows after it, until the next stamp.
BEGIN;
INSERT INTO orders VALUES (2, 'before');
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v2", "serviceName": "order-api", "identifier": "req-2"}');
INSERT INTO orders VALUES (3, 'first');
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v9", "serviceName": "billing", "identifier": "größe \"x\" \\ \u2028"}');
INSERT INTO orders VALUES (4, 'second');
COMMIT;
-> {"entity": "orders", "key": "2",
    "provenance": {"apiVersion": "none", "serviceName": "by hand", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 0}},
    "current": {"id":2,"status":"before"}}
-> {"entity": "orders", "key": "3",
    "provenance": {"apiVersion": "v2", "serviceName": "order-api", "identifier": "req-2", "source": {"table": "public.orders", "op": "create", "ordinal": 4}},
    "current": {"id":3,"status":"first"}}
-> {"entity": "orders", "key": "4",
    "provenance": {"apiVersion": "v9", "serviceName": "billing", "identifier": "größe \"x\" \\  ", "source": {"table": "public.orders", "op": "create", "ordinal": 8}},
    "current": {"id":4,"status":"second"}}

-- Fields that the stamp lacks are empty. Unknown fields, and fields that are not texts, are left out.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "billing"}');
INSERT INTO orders VALUES (5, 'some fields');
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "shop", "apiVersion": 2, "identifier": "req-3", "colour": "red"}');
INSERT INTO orders VALUES (6, 'unknown field');
COMMIT;
-> {"entity": "orders", "key": "5",
    "provenance": {"apiVersion": "", "serviceName": "billing", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":5,"status":"some fields"}}
-> {"entity": "orders", "key": "6",
    "provenance": {"apiVersion": "", "serviceName": "shop", "identifier": "req-3", "source": {"table": "public.orders", "op": "create", "ordinal": 6}},
    "current": {"id":6,"status":"unknown field"}}

-- A message that is not JSON, or is too long, is not a stamp. Such a message does not stop the service.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', 'order-api');
INSERT INTO orders VALUES (7, 'not JSON');
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "' || repeat('x', 4096) || '"}');
INSERT INTO orders VALUES (8, 'too long');
COMMIT;
-> {"entity": "orders", "key": "7",
    "provenance": {"apiVersion": "none", "serviceName": "by hand", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":7,"status":"not JSON"}}
-> {"entity": "orders", "key": "8",
    "provenance": {"apiVersion": "none", "serviceName": "by hand", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 6}},
    "current": {"id":8,"status":"too long"}}

-- If a message is not a valid stamp, the stamp before it stays valid.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "order-api"}');
SELECT pg_logical_emit_message(true, 'provenance', 'order-api');
INSERT INTO orders VALUES (11, 'still stamped');
COMMIT;
-> {"entity": "orders", "key": "11",
    "provenance": {"apiVersion": "", "serviceName": "order-api", "identifier": "", "source": {"table": "public.orders", "op": "create", "ordinal": 4}},
    "current": {"id":11,"status":"still stamped"}}

-- A context is published as it was written: with its numbers, its blanks, its repeated names, and escapes that are not
-- a character. A context that is too long, too deep or not an object is left out, and the rest of the stamp stays
-- valid.
BEGIN;
SELECT pg_logical_emit_message(true, 'provenance',
    '{"context": {"ticket": "PAY-7", "n": 1.10, "big": 12345678901234567890123, "e": 1E2, "n" : [ ] , "half": "\ud800", "ä": "日本 \u0000"}, "serviceName": "shop"}');
INSERT INTO orders VALUES (12, 'with a context');
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "shop", "context": {}}');
INSERT INTO orders VALUES (13, 'with an empty one');
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "shop", "identifier": "req-14", "context": "PAY-7"}');
INSERT INTO orders VALUES (14, 'no object');
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "shop", "identifier": "req-15", "context": {"x": "' || repeat('x', 100000) || '"}}');
INSERT INTO orders VALUES (15, 'too long');
SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "shop", "identifier": "req-16", "context": {"x": ' || repeat('[', 1500) || repeat(']', 1500) || '}}');
INSERT INTO orders VALUES (16, 'too deep');
COMMIT;
-> {"entity": "orders", "key": "12",
    "provenance": {"apiVersion": "", "serviceName": "shop", "identifier": "", "context": {"ticket": "PAY-7", "n": 1.10, "big": 12345678901234567890123, "e": 1E2, "n" : [ ] , "half": "\ud800", "ä": "日本 \u0000"}, "source": {"table": "public.orders", "op": "create", "ordinal": 2}},
    "current": {"id":12,"status":"with a context"}}
-> {"entity": "orders", "key": "13",
    "provenance": {"apiVersion": "", "serviceName": "shop", "identifier": "", "context": {}, "source": {"table": "public.orders", "op": "create", "ordinal": 6}},
    "current": {"id":13,"status":"with an empty one"}}
-> {"entity": "orders", "key": "14",
    "provenance": {"apiVersion": "", "serviceName": "shop", "identifier": "req-14", "source": {"table": "public.orders", "op": "create", "ordinal": 10}},
    "current": {"id":14,"status":"no object"}}
-> {"entity": "orders", "key": "15",
    "provenance": {"apiVersion": "", "serviceName": "shop", "identifier": "req-15", "source": {"table": "public.orders", "op": "create", "ordinal": 14}},
    "current": {"id":15,"status":"too long"}}
-> {"entity": "orders", "key": "16",
    "provenance": {"apiVersion": "", "serviceName": "shop", "identifier": "req-16", "source": {"table": "public.orders", "op": "create", "ordinal": 18}},
    "current": {"id":16,"status":"too deep"}}
