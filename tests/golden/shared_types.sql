-- Types that mean the same in all databases. A value has the same text whether it is read from the table or from the
-- log.
--# mysql = true
--# [entities.number]
--# table = "public.number"
--# [entities.word]
--# table = "public.word"
--# [entities.pair]
--# table = "public.pair"

CREATE TABLE number (id bigint PRIMARY KEY, small smallint, whole int, exact numeric(30, 10), approximate double precision);
ALTER TABLE number REPLICA IDENTITY FULL;
CREATE TABLE word (id int PRIMARY KEY, short varchar(40), long_text text, day date, doc json);
ALTER TABLE word REPLICA IDENTITY FULL;
CREATE TABLE pair (a varchar(40), b int, PRIMARY KEY (a, b));
INSERT INTO number VALUES (-9223372036854775808, -32768, 2147483647, 12345678901234567890.0123456789, 0.1), (0, 0, 0, 0, 0);
INSERT INTO word VALUES (1, '', 'two
lines', '2024-02-29', '{"a": [1, null, "x"]}');

--> run
-> {"entity": "number", "key": "-9223372036854775808",
    "provenance": {"source": {"table": "public.number", "op": "read", "ordinal": 2}},
    "current": {"id":-9223372036854775808,"small":-32768,"whole":2147483647,"exact":"12345678901234567890.0123456789","approximate":0.1}}
-> {"entity": "number", "key": "0", "provenance": {"source": {"table": "public.number", "op": "read", "ordinal": 4}},
    "current": {"id":0,"small":0,"whole":0,"exact":"0.0000000000","approximate":0}}
-> {"entity": "word", "key": "1", "provenance": {"source": {"table": "public.word", "op": "read", "ordinal": 2}},
    "current": {"id":1,"short":"","long_text":"two\nlines","day":"2024-02-29","doc":{"a": [1, null, "x"]}}}

INSERT INTO number VALUES (9223372036854775807, 32767, -2147483648, -0.0000000001, -1.5), (1, NULL, NULL, NULL, NULL);
-> {"entity": "number", "key": "9223372036854775807",
    "provenance": {"source": {"table": "public.number", "op": "create", "ordinal": 0}},
    "current": {"id":9223372036854775807,"small":32767,"whole":-2147483648,"exact":"-0.0000000001","approximate":-1.5}}
-> {"entity": "number", "key": "1", "provenance": {"source": {"table": "public.number", "op": "create", "ordinal": 2}},
    "current": {"id":1,"small":null,"whole":null,"exact":null,"approximate":null}}

-- A float of 32 bits cannot hold 16777217, and 0.30000000000000004 needs 17 digits.
INSERT INTO number VALUES (2, 1, 1, 1, 16777217), (3, 1, 1, 1, 0.30000000000000004), (4, 1, 1, 1, 123456789012345.6);
-> {"entity": "number", "key": "2", "provenance": {"source": {"table": "public.number", "op": "create", "ordinal": 0}},
    "current": {"id":2,"small":1,"whole":1,"exact":"1.0000000000","approximate":16777217}}
-> {"entity": "number", "key": "3", "provenance": {"source": {"table": "public.number", "op": "create", "ordinal": 2}},
    "current": {"id":3,"small":1,"whole":1,"exact":"1.0000000000","approximate":0.30000000000000004}}
-> {"entity": "number", "key": "4", "provenance": {"source": {"table": "public.number", "op": "create", "ordinal": 4}},
    "current": {"id":4,"small":1,"whole":1,"exact":"1.0000000000","approximate":123456789012345.6}}

UPDATE number SET exact = 1.10 WHERE id = 0;
-> {"entity": "number", "key": "0", "provenance": {"source": {"table": "public.number", "op": "update", "ordinal": 0}},
    "current": {"id":0,"small":0,"whole":0,"exact":"1.1000000000","approximate":0},
    "original": {"id":0,"small":0,"whole":0,"exact":"0.0000000000","approximate":0}}

INSERT INTO word VALUES (2, 'a "quoted" \ text', 'größe 日本 🛎', '0001-01-01', '{"ä": "日本 \"quoted\""}'), (3, ' spaces ', '	tab', '9999-12-31', '[]'), (4, NULL, NULL, NULL, NULL);
-> {"entity": "word", "key": "2", "provenance": {"source": {"table": "public.word", "op": "create", "ordinal": 0}},
    "current": {"id":2,"short":"a \"quoted\" \\ text","long_text":"größe 日本 🛎","day":"0001-01-01","doc":{"ä": "日本 \"quoted\""}}}
-> {"entity": "word", "key": "3", "provenance": {"source": {"table": "public.word", "op": "create", "ordinal": 2}},
    "current": {"id":3,"short":" spaces ","long_text":"\ttab","day":"9999-12-31","doc":[]}}
-> {"entity": "word", "key": "4", "provenance": {"source": {"table": "public.word", "op": "create", "ordinal": 4}},
    "current": {"id":4,"short":null,"long_text":null,"day":null,"doc":null}}

UPDATE word SET doc = '"text"', day = '1969-12-31' WHERE id = 4;
-> {"entity": "word", "key": "4", "provenance": {"source": {"table": "public.word", "op": "update", "ordinal": 0}},
    "current": {"id":4,"short":null,"long_text":null,"day":"1969-12-31","doc":"text"},
    "original": {"id":4,"short":null,"long_text":null,"day":null,"doc":null}}

DELETE FROM word WHERE id = 2;
-> {"entity": "word", "key": "2", "provenance": {"source": {"table": "public.word", "op": "delete", "ordinal": 0}},
    "current": null,
    "original": {"id":2,"short":"a \"quoted\" \\ text","long_text":"größe 日本 🛎","day":"0001-01-01","doc":{"ä": "日本 \"quoted\""}}}

INSERT INTO pair VALUES ('x', 1), ('', 2), ('a "quoted" \ key, [with] ünïcode 🛎', 3);
-> {"entity": "pair", "key": "[\"x\",\"1\"]",
    "provenance": {"source": {"table": "public.pair", "op": "create", "ordinal": 0}}, "current": {"a":"x","b":1}}
-> {"entity": "pair", "key": "[\"\",\"2\"]",
    "provenance": {"source": {"table": "public.pair", "op": "create", "ordinal": 2}}, "current": {"a":"","b":2}}
-> {"entity": "pair", "key": "[\"a \\\"quoted\\\" \\\\ key, [with] ünïcode 🛎\",\"3\"]",
    "provenance": {"source": {"table": "public.pair", "op": "create", "ordinal": 4}},
    "current": {"a":"a \"quoted\" \\ key, [with] ünïcode 🛎","b":3}}
