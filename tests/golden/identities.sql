-- How much of the old row the log holds is the table's REPLICA IDENTITY.
--# [entities.full]
--# table = "public.full"
--# [entities.default]
--# table = "public.default"
--# [entities.by_index]
--# table = "public.by_index"
--# key = ["code"]

CREATE TABLE "full" (id int PRIMARY KEY, a text, b text);
ALTER TABLE "full" REPLICA IDENTITY FULL;
CREATE TABLE "default" (id int PRIMARY KEY, a text, b text);
CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, b text);
CREATE UNIQUE INDEX by_code ON by_index (code);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_code;
INSERT INTO "full" VALUES (1, 'a', NULL);
INSERT INTO "default" VALUES (1, 'a', NULL);
INSERT INTO by_index VALUES (1, 'x', NULL);

--> run
-> {"entity": "by_index", "key": "x", "provenance": {"source": {"table": "public.by_index", "op": "read", "ordinal": 2}},
    "current": {"id":1,"code":"x","b":null}}
-> {"entity": "default", "key": "1", "provenance": {"source": {"table": "public.default", "op": "read", "ordinal": 2}},
    "current": {"id":1,"a":"a","b":null}}
-> {"entity": "full", "key": "1", "provenance": {"source": {"table": "public.full", "op": "read", "ordinal": 2}},
    "current": {"id":1,"a":"a","b":null}}

-- FULL: everything.
UPDATE "full" SET a = 'changed';
-> {"entity": "full", "key": "1", "provenance": {"source": {"table": "public.full", "op": "update", "ordinal": 0}},
    "current": {"id":1,"a":"changed","b":null}, "original": {"id":1,"a":"a","b":null}}

DELETE FROM "full";
-> {"entity": "full", "key": "1", "provenance": {"source": {"table": "public.full", "op": "delete", "ordinal": 0}},
    "current": null, "original": {"id":1,"a":"changed","b":null}}

-- DEFAULT: an update that leaves the key alone has no old row; the original is not known, and so it is absent.
UPDATE "default" SET a = 'changed';
-> {"entity": "default", "key": "1", "provenance": {"source": {"table": "public.default", "op": "update", "ordinal": 0}},
    "current": {"id":1,"a":"changed","b":null}}

-- A changed key comes with the old key, which a move needs; the rest of the original is unavailable, not null.
UPDATE "default" SET id = 2;
-> {"entity": "default", "key": "1", "movedTo": {"key": "2"},
    "provenance": {"source": {"table": "public.default", "op": "delete", "ordinal": 0, "unavailableOriginal": ["a", "b"]}},
    "current": null, "original": {"id":1}}
-> {"entity": "default", "key": "2", "movedFrom": {"key": "1"},
    "provenance": {"source": {"table": "public.default", "op": "create", "ordinal": 1}},
    "current": {"id":2,"a":"changed","b":null}}

DELETE FROM "default";
-> {"entity": "default", "key": "2",
    "provenance": {"source": {"table": "public.default", "op": "delete", "ordinal": 0, "unavailableOriginal": ["a", "b"]}},
    "current": null, "original": {"id":2}}

-- An index serves as well as the primary key.
UPDATE by_index SET b = 'changed';
-> {"entity": "by_index", "key": "x",
    "provenance": {"source": {"table": "public.by_index", "op": "update", "ordinal": 0}},
    "current": {"id":1,"code":"x","b":"changed"}}

UPDATE by_index SET code = 'y';
-> {"entity": "by_index", "key": "x", "movedTo": {"key": "y"},
    "provenance": {"source": {"table": "public.by_index", "op": "delete", "ordinal": 0, "unavailableOriginal": ["id", "b"]}},
    "current": null, "original": {"code":"x"}}
-> {"entity": "by_index", "key": "y", "movedFrom": {"key": "x"},
    "provenance": {"source": {"table": "public.by_index", "op": "create", "ordinal": 1}},
    "current": {"id":1,"code":"y","b":"changed"}}

DELETE FROM by_index;
-> {"entity": "by_index", "key": "y",
    "provenance": {"source": {"table": "public.by_index", "op": "delete", "ordinal": 0, "unavailableOriginal": ["id", "b"]}},
    "current": null, "original": {"code":"y"}}
