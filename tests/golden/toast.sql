-- A large value that did not change is not in the log's new row. Only a whole old row (REPLICA IDENTITY FULL) has the
-- value. The column `bulk`, which is not published, makes the row so large that the server stores `note` apart, too.
--# [entities.whole]
--# table = "public.whole"
--# exclude_columns = ["bulk"]
--# [entities.part]
--# table = "public.part"
--# exclude_columns = ["bulk"]

CREATE TABLE whole (id int PRIMARY KEY, status text, note text, bulk text) WITH (toast_tuple_target = 128);
ALTER TABLE whole ALTER COLUMN note SET STORAGE EXTERNAL, ALTER COLUMN bulk SET STORAGE EXTERNAL;
CREATE TABLE part (LIKE whole INCLUDING ALL);
ALTER TABLE part SET (toast_tuple_target = 128);
ALTER TABLE whole REPLICA IDENTITY FULL;
INSERT INTO whole VALUES (1, 'NEW', rpad('large', 110, '-'), repeat('x', 9000));

-- A row that is read from the table has all its values.
--> run
-> {"entity": "whole", "key": "1", "provenance": {"source": {"table": "public.whole", "op": "read", "ordinal": 2}},
    "current": {"id":1,"status":"NEW","note":"large---------------------------------------------------------------------------------------------------------"}}

INSERT INTO part VALUES (1, 'NEW', rpad('large', 110, '-'), repeat('x', 9000));
-> {"entity": "part", "key": "1", "provenance": {"source": {"table": "public.part", "op": "create", "ordinal": 0}},
    "current": {"id":1,"status":"NEW","note":"large---------------------------------------------------------------------------------------------------------"}}

-- FULL: the log's old row has the value, so both `current` and `original` are whole.
UPDATE whole SET status = 'PAID';
-> {"entity": "whole", "key": "1", "provenance": {"source": {"table": "public.whole", "op": "update", "ordinal": 0}},
    "current": {"id":1,"status":"PAID","note":"large---------------------------------------------------------------------------------------------------------"},
    "original": {"id":1,"status":"NEW","note":"large---------------------------------------------------------------------------------------------------------"}}

UPDATE whole SET note = NULL;
-> {"entity": "whole", "key": "1", "provenance": {"source": {"table": "public.whole", "op": "update", "ordinal": 0}},
    "current": {"id":1,"status":"PAID","note":null},
    "original": {"id":1,"status":"PAID","note":"large---------------------------------------------------------------------------------------------------------"}}

-- Without FULL, the value is unavailable, which is not the same as null. The message lacks it.
UPDATE part SET status = 'PAID';
-> {"entity": "part", "key": "1",
    "provenance": {"source": {"table": "public.part", "op": "update", "ordinal": 0, "unavailable": ["note"]}},
    "current": {"id":1,"status":"PAID"}}

-- If the value changes, the log's new row has it.
UPDATE part SET note = rpad('another', 110, '-');
-> {"entity": "part", "key": "1", "provenance": {"source": {"table": "public.part", "op": "update", "ordinal": 0}},
    "current": {"id":1,"status":"PAID","note":"another-------------------------------------------------------------------------------------------------------"}}

UPDATE part SET note = NULL;
-> {"entity": "part", "key": "1", "provenance": {"source": {"table": "public.part", "op": "update", "ordinal": 0}},
    "current": {"id":1,"status":"PAID","note":null}}

UPDATE part SET note = rpad('large', 110, '-');
-> {"entity": "part", "key": "1", "provenance": {"source": {"table": "public.part", "op": "update", "ordinal": 0}},
    "current": {"id":1,"status":"PAID","note":"large---------------------------------------------------------------------------------------------------------"}}

-- After a move, the create lacks the value as well. For the delete, the log has only the key.
UPDATE part SET id = 2;
-> {"entity": "part", "key": "1", "movedTo": {"key": "2"},
    "provenance": {"source": {"table": "public.part", "op": "delete", "ordinal": 0, "unavailableOriginal": ["status", "note"]}},
    "current": null, "original": {"id":1}}
-> {"entity": "part", "key": "2", "movedFrom": {"key": "1"},
    "provenance": {"source": {"table": "public.part", "op": "create", "ordinal": 1, "unavailable": ["note"]}},
    "current": {"id":2,"status":"PAID"}}

-- From here on, the table has REPLICA IDENTITY FULL.
ALTER TABLE part REPLICA IDENTITY FULL;
UPDATE part SET status = 'DONE';
-> {"entity": "part", "key": "2", "provenance": {"source": {"table": "public.part", "op": "update", "ordinal": 0}},
    "current": {"id":2,"status":"DONE","note":"large---------------------------------------------------------------------------------------------------------"},
    "original": {"id":2,"status":"PAID","note":"large---------------------------------------------------------------------------------------------------------"}}

UPDATE part SET id = 3;
-> {"entity": "part", "key": "2", "movedTo": {"key": "3"},
    "provenance": {"source": {"table": "public.part", "op": "delete", "ordinal": 0}}, "current": null,
    "original": {"id":2,"status":"DONE","note":"large---------------------------------------------------------------------------------------------------------"}}
-> {"entity": "part", "key": "3", "movedFrom": {"key": "2"},
    "provenance": {"source": {"table": "public.part", "op": "create", "ordinal": 1}},
    "current": {"id":3,"status":"DONE","note":"large---------------------------------------------------------------------------------------------------------"}}

DELETE FROM part;
-> {"entity": "part", "key": "3", "provenance": {"source": {"table": "public.part", "op": "delete", "ordinal": 0}},
    "current": null,
    "original": {"id":3,"status":"DONE","note":"large---------------------------------------------------------------------------------------------------------"}}
