-- Types of extensions: hstore is published as an object, citext as a text.
--# [entities.thing]
--# table = "public.thing"

CREATE EXTENSION hstore;
CREATE EXTENSION citext;
CREATE TABLE thing (id citext PRIMARY KEY, h hstore, hs hstore[]);
ALTER TABLE thing REPLICA IDENTITY FULL;

--> run

INSERT INTO thing VALUES ('Key', 'a=>1, "b c"=>NULL, "q\"q"=>"NULL"', array['x=>y', '']::hstore[]);
-> {"entity": "thing", "key": "Key", "provenance": {"source": {"table": "public.thing", "op": "create", "ordinal": 0}},
    "current": {"id":"Key","h":{"a":"1","b c":null,"q\"q":"NULL"},"hs":[{"x":"y"},{}]}}

-- For the database, the old and the new key are equal, because citext ignores case. But the key's text has changed, so
-- this is a move.
UPDATE thing SET id = 'KEY';
-> {"entity": "thing", "key": "Key", "movedTo": {"key": "KEY"},
    "provenance": {"source": {"table": "public.thing", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":"Key","h":{"a":"1","b c":null,"q\"q":"NULL"},"hs":[{"x":"y"},{}]}}
-> {"entity": "thing", "key": "KEY", "movedFrom": {"key": "Key"},
    "provenance": {"source": {"table": "public.thing", "op": "create", "ordinal": 1}},
    "current": {"id":"KEY","h":{"a":"1","b c":null,"q\"q":"NULL"},"hs":[{"x":"y"},{}]}}
