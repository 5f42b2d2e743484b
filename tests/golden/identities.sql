-- The table's REPLICA IDENTITY decides how much of the old row is in the log.
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

-- FULL: the log has the whole old row.
UPDATE "full" SET a = 'changed';
-> {"entity": "full", "key": "1", "provenance": {"source": {"table": "public.full", "op": "update", "ordinal": 0}},
    "current": {"id":1,"a":"changed","b":null}, "original": {"id":1,"a":"a","b":null}}

DELETE FROM "full";
-> {"entity": "full", "key": "1", "provenance": {"source": {"table": "public.full", "op": "delete", "ordinal": 0}},
    "current": null, "original": {"id":1,"a":"changed","b":null}}

-- DEFAULT: if an update does not change the key, the log has no old row. So the original is unknown, and the message
-- lacks it.
UPDATE "default" SET a = 'changed';
-> {"entity": "default", "key": "1", "provenance": {"source": {"table": "public.default", "op": "update", "ordinal": 0}},
    "current": {"id":1,"a":"changed","b":null}}

-- If the key changes, the log has the old key, which a move needs. The other columns of the original are unavailable,
-- not null.
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

-- With an index as the identity, the log has the columns of the index instead of the primary key.
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
