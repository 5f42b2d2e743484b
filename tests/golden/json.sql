-- Values of json and jsonb are published as they are: numbers keep their digits, and the JSON null is not the SQL NULL.
--# [entities.doc]
--# table = "public.doc"

CREATE TABLE doc (id int PRIMARY KEY, j json, b jsonb);
ALTER TABLE doc REPLICA IDENTITY FULL;
INSERT INTO doc VALUES (1, 'null', NULL);

--> run
-> {"entity": "doc", "key": "1",
    "provenance": {"source": {"table": "public.doc", "op": "read", "ordinal": 2, "jsonNull": ["j"]}},
    "current": {"id":1,"j":null,"b":null}}

INSERT INTO doc VALUES (2, '{"n": 1.10, "big": 12345678901234567890123, "e": 1E2, "n": "twice"}', '{"n": 1.10, "b": 2, "a": 1}');
-> {"entity": "doc", "key": "2", "provenance": {"source": {"table": "public.doc", "op": "create", "ordinal": 0}},
    "current": {"id":2,"j":{"n": 1.10, "big": 12345678901234567890123, "e": 1E2, "n": "twice"},"b":{"a": 1, "b": 2, "n": 1.10}}}

INSERT INTO doc VALUES (3, NULL, 'null'), (4, 'null', 'null'), (5, '"text"', '[]'), (6, ' [ 1 , {} ] ', '{"k": null}');
-> {"entity": "doc", "key": "3",
    "provenance": {"source": {"table": "public.doc", "op": "create", "ordinal": 0, "jsonNull": ["b"]}},
    "current": {"id":3,"j":null,"b":null}}
-> {"entity": "doc", "key": "4",
    "provenance": {"source": {"table": "public.doc", "op": "create", "ordinal": 2, "jsonNull": ["j", "b"]}},
    "current": {"id":4,"j":null,"b":null}}
-> {"entity": "doc", "key": "5", "provenance": {"source": {"table": "public.doc", "op": "create", "ordinal": 4}},
    "current": {"id":5,"j":"text","b":[]}}
-> {"entity": "doc", "key": "6", "provenance": {"source": {"table": "public.doc", "op": "create", "ordinal": 6}},
    "current": {"id":6,"j": [ 1 , {} ] ,"b":{"k": null}}}

INSERT INTO doc VALUES (7, '{"half a pair": "\ud800", "escaped": "\u00e4\/"}', '{"ä": "日本 \"quoted\""}');
-> {"entity": "doc", "key": "7", "provenance": {"source": {"table": "public.doc", "op": "create", "ordinal": 0}},
    "current": {"id":7,"j":{"half a pair": "\ud800", "escaped": "\u00e4\/"},"b":{"ä": "日本 \"quoted\""}}}

UPDATE doc SET b = NULL WHERE id = 4;
-> {"entity": "doc", "key": "4",
    "provenance": {"source": {"table": "public.doc", "op": "update", "ordinal": 0, "jsonNull": ["j"], "jsonNullOriginal": ["j", "b"]}},
    "current": {"id":4,"j":null,"b":null}, "original": {"id":4,"j":null,"b":null}}

UPDATE doc SET j = NULL, b = 'null' WHERE id = 4;
-> {"entity": "doc", "key": "4",
    "provenance": {"source": {"table": "public.doc", "op": "update", "ordinal": 0, "jsonNull": ["b"], "jsonNullOriginal": ["j"]}},
    "current": {"id":4,"j":null,"b":null}, "original": {"id":4,"j":null,"b":null}}

DELETE FROM doc WHERE id = 4;
-> {"entity": "doc", "key": "4",
    "provenance": {"source": {"table": "public.doc", "op": "delete", "ordinal": 0, "jsonNullOriginal": ["b"]}},
    "current": null, "original": {"id":4,"j":null,"b":null}}
