-- The root has REPLICA IDENTITY FULL, and the partitions have different identities: an index, the key, or the whole
-- row. An old row does not say which partition it comes from. So a null is unavailable if it may come from a partition
-- whose identity lacks the column.
--# [entities.event]
--# table = "public.event"

CREATE TABLE event (id int, day int, code text NOT NULL, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
ALTER TABLE event REPLICA IDENTITY FULL;
CREATE TABLE event_full PARTITION OF event FOR VALUES FROM (0) TO (10);
ALTER TABLE event_full REPLICA IDENTITY FULL;
CREATE TABLE event_index PARTITION OF event FOR VALUES FROM (10) TO (20);
CREATE UNIQUE INDEX event_code ON event_index (id, day, code);
ALTER TABLE event_index REPLICA IDENTITY USING INDEX event_code;

--> run

BEGIN;
INSERT INTO event VALUES (1, 1, 'A', NULL), (2, 1, 'A', NULL), (3, 1, 'A', 'x');
DELETE FROM event WHERE id = 1;
COMMIT;
-> {"entity": "event", "key": "[\"1\",\"1\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":1,"day":1,"code":"A","note":null}}
-> {"entity": "event", "key": "[\"2\",\"1\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 2}},
    "current": {"id":2,"day":1,"code":"A","note":null}}
-> {"entity": "event", "key": "[\"3\",\"1\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 4}},
    "current": {"id":3,"day":1,"code":"A","note":"x"}}
-> {"entity": "event", "key": "[\"1\",\"1\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 6}}, "current": null,
    "original": {"id":1,"day":1,"code":"A","note":null}}

BEGIN;
INSERT INTO event VALUES (11, 11, 'B', 'x'), (12, 11, 'B', 'y');
DELETE FROM event WHERE id IN (2, 3, 11);
COMMIT;
-> {"entity": "event", "key": "[\"11\",\"11\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":11,"day":11,"code":"B","note":"x"}}
-> {"entity": "event", "key": "[\"12\",\"11\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 2}},
    "current": {"id":12,"day":11,"code":"B","note":"y"}}
-> {"entity": "event", "key": "[\"2\",\"1\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 4, "unavailableOriginal": ["note"]}},
    "current": null, "original": {"id":2,"day":1,"code":"A"}}
-> {"entity": "event", "key": "[\"3\",\"1\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 6}}, "current": null,
    "original": {"id":3,"day":1,"code":"A","note":"x"}}
-> {"entity": "event", "key": "[\"11\",\"11\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 8, "unavailableOriginal": ["note"]}},
    "current": null, "original": {"id":11,"day":11,"code":"B"}}

UPDATE event SET code = 'C', id = 13 WHERE id = 12;
-> {"entity": "event", "key": "[\"12\",\"11\"]", "movedTo": {"key": "[\"13\",\"11\"]"},
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 0, "unavailableOriginal": ["note"]}},
    "current": null, "original": {"id":12,"day":11,"code":"B"}}
-> {"entity": "event", "key": "[\"13\",\"11\"]", "movedFrom": {"key": "[\"12\",\"11\"]"},
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 1}},
    "current": {"id":13,"day":11,"code":"C","note":"y"}}

-- The server describes a partition that was added later before it sends the partition's first row.
CREATE TABLE event_later PARTITION OF event FOR VALUES FROM (20) TO (30);
INSERT INTO event VALUES (21, 21, 'D', 'z');
-> {"entity": "event", "key": "[\"21\",\"21\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":21,"day":21,"code":"D","note":"z"}}
DELETE FROM event WHERE id = 21;
-> {"entity": "event", "key": "[\"21\",\"21\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 0, "unavailableOriginal": ["code", "note"]}},
    "current": null, "original": {"id":21,"day":21}}

-- An update that moves a row to another partition becomes a delete and an insert.
INSERT INTO event VALUES (14, 11, 'E', 'z');
-> {"entity": "event", "key": "[\"14\",\"11\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":14,"day":11,"code":"E","note":"z"}}
UPDATE event SET day = 1 WHERE id = 14;
-> {"entity": "event", "key": "[\"14\",\"11\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 0, "unavailableOriginal": ["note"]}},
    "current": null, "original": {"id":14,"day":11,"code":"E"}}
-> {"entity": "event", "key": "[\"14\",\"1\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 2}},
    "current": {"id":14,"day":1,"code":"E","note":"z"}}

-- Once every partition logs whole rows, a null in an old row is a null again.
ALTER TABLE event_index REPLICA IDENTITY FULL;
ALTER TABLE event_later REPLICA IDENTITY FULL;
BEGIN;
INSERT INTO event VALUES (15, 11, 'F', NULL), (22, 21, 'F', NULL);
DELETE FROM event WHERE id IN (15, 22);
COMMIT;
-> {"entity": "event", "key": "[\"15\",\"11\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":15,"day":11,"code":"F","note":null}}
-> {"entity": "event", "key": "[\"22\",\"21\"]",
    "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 2}},
    "current": {"id":22,"day":21,"code":"F","note":null}}
-> {"entity": "event", "key": "[\"15\",\"11\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 4}}, "current": null,
    "original": {"id":15,"day":11,"code":"F","note":null}}
-> {"entity": "event", "key": "[\"22\",\"21\"]",
    "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 6}}, "current": null,
    "original": {"id":22,"day":21,"code":"F","note":null}}
