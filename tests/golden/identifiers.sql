-- Names that need quotes, that are not ASCII, or that differ only in case; one table name in two schemas.
--# [entities.groesse]
--# table = '"Größe ""XL"""'
--# [entities.guest]
--# table = "public.guest"
--# [entities.big-guest]
--# table = "public.GUEST"
--# [entities.sales-guest]
--# table = "sales.guest"
--# [entities.dotted]
--# table = '"my.schema"."a.b"'
--# key = ["the key", "ключ"]

CREATE TABLE "Größe ""XL""" ("Id" int PRIMARY KEY, "select" text, "with "" quote \ and	tab" text, "名前" text);
ALTER TABLE "Größe ""XL""" REPLICA IDENTITY FULL;
CREATE TABLE guest (id int PRIMARY KEY);
CREATE TABLE "GUEST" (id int PRIMARY KEY);
CREATE SCHEMA sales;
CREATE TABLE sales.guest (id int PRIMARY KEY);
CREATE SCHEMA "my.schema";
CREATE TABLE "my.schema"."a.b" ("the key" int, "ключ" text, PRIMARY KEY ("the key", "ключ"));
INSERT INTO "Größe ""XL""" VALUES (1, 'read', 'a', 'b');
INSERT INTO "my.schema"."a.b" VALUES (1, 'read');

--> run
-> {"entity": "dotted", "key": "[\"1\",\"read\"]",
    "provenance": {"source": {"table": "my.schema.a.b", "op": "read", "ordinal": 2}},
    "current": {"the key":1,"ключ":"read"}}
-> {"entity": "groesse", "key": "1",
    "provenance": {"source": {"table": "public.Größe \"XL\"", "op": "read", "ordinal": 2}},
    "current": {"Id":1,"select":"read","with \" quote \\ and\ttab":"a","名前":"b"}}

INSERT INTO "Größe ""XL""" VALUES (2, 'created', 'c', '日本');
-> {"entity": "groesse", "key": "2",
    "provenance": {"source": {"table": "public.Größe \"XL\"", "op": "create", "ordinal": 0}},
    "current": {"Id":2,"select":"created","with \" quote \\ and\ttab":"c","名前":"日本"}}

UPDATE "Größe ""XL""" SET "名前" = '京都' WHERE "Id" = 2;
-> {"entity": "groesse", "key": "2",
    "provenance": {"source": {"table": "public.Größe \"XL\"", "op": "update", "ordinal": 0}},
    "current": {"Id":2,"select":"created","with \" quote \\ and\ttab":"c","名前":"京都"},
    "original": {"Id":2,"select":"created","with \" quote \\ and\ttab":"c","名前":"日本"}}

INSERT INTO guest VALUES (1);
-> {"entity": "guest", "key": "1", "provenance": {"source": {"table": "public.guest", "op": "create", "ordinal": 0}},
    "current": {"id":1}}
INSERT INTO "GUEST" VALUES (1);
-> {"entity": "big-guest", "key": "1", "provenance": {"source": {"table": "public.GUEST", "op": "create", "ordinal": 0}},
    "current": {"id":1}}
INSERT INTO sales.guest VALUES (1);
-> {"entity": "sales-guest", "key": "1", "provenance": {"source": {"table": "sales.guest", "op": "create", "ordinal": 0}},
    "current": {"id":1}}

INSERT INTO "my.schema"."a.b" VALUES (2, 'ß');
-> {"entity": "dotted", "key": "[\"2\",\"ß\"]",
    "provenance": {"source": {"table": "my.schema.a.b", "op": "create", "ordinal": 0}},
    "current": {"the key":2,"ключ":"ß"}}
