-- The key is made of texts: one for the value of each key column. A key of one column is this text; a key of several
-- columns is a JSON array of their texts.
--# [entities.pair]
--# table = "public.pair"
--# [entities.price]
--# table = "public.price"
--# [entities.moment]
--# table = "public.moment"
--# [entities.odd]
--# table = "public.odd"
--# [entities.other]
--# table = "public.other"
--# key = ["code"]

CREATE TABLE pair (a text, b int, PRIMARY KEY (a, b));
CREATE TABLE price (amount numeric PRIMARY KEY);
CREATE TABLE moment (at timestamptz, day date, u uuid, flag boolean, PRIMARY KEY (at, day, u, flag));
CREATE TABLE odd (f float8 PRIMARY KEY);
CREATE TABLE other (id int PRIMARY KEY, code text NOT NULL UNIQUE);
ALTER TABLE other REPLICA IDENTITY FULL;

--> run

INSERT INTO pair VALUES ('x', 1), ('', 2), ('a "quoted" \ key, [with] ünïcode 🛎' || chr(9), 3);
-> {"entity": "pair", "key": "[\"x\",\"1\"]",
    "provenance": {"source": {"table": "public.pair", "op": "create", "ordinal": 0}}, "current": {"a":"x","b":1}}
-> {"entity": "pair", "key": "[\"\",\"2\"]",
    "provenance": {"source": {"table": "public.pair", "op": "create", "ordinal": 2}}, "current": {"a":"","b":2}}
-> {"entity": "pair", "key": "[\"a \\\"quoted\\\" \\\\ key, [with] ünïcode 🛎\\t\",\"3\"]",
    "provenance": {"source": {"table": "public.pair", "op": "create", "ordinal": 4}},
    "current": {"a":"a \"quoted\" \\ key, [with] ünïcode 🛎\t","b":3}}

INSERT INTO price VALUES (1), (1.50), (-0.0), ('NaN'), ('Infinity');
-> {"entity": "price", "key": "1", "provenance": {"source": {"table": "public.price", "op": "create", "ordinal": 0}},
    "current": {"amount":"1"}}
-> {"entity": "price", "key": "1.50", "provenance": {"source": {"table": "public.price", "op": "create", "ordinal": 2}},
    "current": {"amount":"1.50"}}
-> {"entity": "price", "key": "0.0", "provenance": {"source": {"table": "public.price", "op": "create", "ordinal": 4}},
    "current": {"amount":"0.0"}}
-> {"entity": "price", "key": "NaN", "provenance": {"source": {"table": "public.price", "op": "create", "ordinal": 6}},
    "current": {"amount":"NaN"}}
-> {"entity": "price", "key": "Infinity",
    "provenance": {"source": {"table": "public.price", "op": "create", "ordinal": 8}}, "current": {"amount":"Infinity"}}

INSERT INTO moment VALUES ('2026-01-01 01:00+01', '0044-03-15 BC', '00000000-0000-0000-0000-0000000000AB', true);
-> {"entity": "moment",
    "key": "[\"2026-01-01T00:00:00.000000Z\",\"0044-03-15 BC\",\"00000000-0000-0000-0000-0000000000ab\",\"true\"]",
    "provenance": {"source": {"table": "public.moment", "op": "create", "ordinal": 0}},
    "current": {"at":"2026-01-01T00:00:00.000000Z","day":"0044-03-15 BC","u":"00000000-0000-0000-0000-0000000000ab","flag":true}}

INSERT INTO odd VALUES (0), (0.1), (1e300), ('-Infinity'), ('NaN');
-> {"entity": "odd", "key": "0", "provenance": {"source": {"table": "public.odd", "op": "create", "ordinal": 0}},
    "current": {"f":0}}
-> {"entity": "odd", "key": "0.1", "provenance": {"source": {"table": "public.odd", "op": "create", "ordinal": 2}},
    "current": {"f":0.1}}
-> {"entity": "odd", "key": "1e+300", "provenance": {"source": {"table": "public.odd", "op": "create", "ordinal": 4}},
    "current": {"f":1e+300}}
-> {"entity": "odd", "key": "-Infinity", "provenance": {"source": {"table": "public.odd", "op": "create", "ordinal": 6}},
    "current": {"f":"-Infinity"}}
-> {"entity": "odd", "key": "NaN", "provenance": {"source": {"table": "public.odd", "op": "create", "ordinal": 8}},
    "current": {"f":"NaN"}}

-- A unique column that is NOT NULL can be the key. The primary key is then a value like any other.
INSERT INTO other VALUES (1, 'one');
-> {"entity": "other", "key": "one", "provenance": {"source": {"table": "public.other", "op": "create", "ordinal": 0}},
    "current": {"id":1,"code":"one"}}

UPDATE other SET id = 2;
-> {"entity": "other", "key": "one", "provenance": {"source": {"table": "public.other", "op": "update", "ordinal": 0}},
    "current": {"id":2,"code":"one"}, "original": {"id":1,"code":"one"}}
