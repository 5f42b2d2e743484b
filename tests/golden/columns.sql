-- Which columns of a table are published, and which values are masked.
--# mysql = true
--# [entities.guest]
--# table = "public.guest"
--# exclude_columns = ["note"]
--# mask = { email = "sha256", phone = "null", passport = "drop", extra = "sha256" }
--# [entities.room]
--# table = "public.room"
--# columns = ["id", "name"]
--# [mask]
--# key = "a secret of sixteen or more"

CREATE TABLE guest (id int PRIMARY KEY, name text, email text, phone text, passport text, note text, extra json);
ALTER TABLE guest REPLICA IDENTITY FULL;
CREATE TABLE room (id int PRIMARY KEY, name text, secret text);
ALTER TABLE room REPLICA IDENTITY FULL;
INSERT INTO guest VALUES (1, 'Ada', 'ada@example.org', '555', 'P1', 'vip', '{"a": 1}');

--> run
-> {"entity": "guest", "key": "1",
    "provenance": {"source": {"table": "public.guest", "op": "read", "ordinal": 2, "mask": "7113caf8b3f64b6d"}},
    "current": {"id":1,"name":"Ada","email":"82fb6e1443e1ae21305382e3447798d7cd406225d15dcd82d186a289cc9bcd24","phone":null,"extra":"fec0858502efb923fe9341fed4001d17ace7523ed7987af346abee9e3f57760e"}}

-- Equal values have equal masks. JSON values are equal if they mean the same. Null stays null.
INSERT INTO guest VALUES (2, 'Twin', 'ada@example.org', '555', 'P2', 'none', '{ "a": 1 }'), (3, 'No mail', NULL, NULL, NULL, NULL, NULL);
-> {"entity": "guest", "key": "2",
    "provenance": {"source": {"table": "public.guest", "op": "create", "ordinal": 0, "mask": "7113caf8b3f64b6d"}},
    "current": {"id":2,"name":"Twin","email":"82fb6e1443e1ae21305382e3447798d7cd406225d15dcd82d186a289cc9bcd24","phone":null,"extra":"fec0858502efb923fe9341fed4001d17ace7523ed7987af346abee9e3f57760e"}}
-> {"entity": "guest", "key": "3",
    "provenance": {"source": {"table": "public.guest", "op": "create", "ordinal": 2, "mask": "7113caf8b3f64b6d"}},
    "current": {"id":3,"name":"No mail","email":null,"phone":null,"extra":null}}

UPDATE guest SET email = 'ada@example.com', note = 'not so vip' WHERE id = 1;
-> {"entity": "guest", "key": "1",
    "provenance": {"source": {"table": "public.guest", "op": "update", "ordinal": 0, "mask": "7113caf8b3f64b6d"}},
    "current": {"id":1,"name":"Ada","email":"f7d0faeba3356c25e329d80cedc01fdcbbb328c1a98003b75e7f26b3eb0e3ac9","phone":null,"extra":"fec0858502efb923fe9341fed4001d17ace7523ed7987af346abee9e3f57760e"},
    "original": {"id":1,"name":"Ada","email":"82fb6e1443e1ae21305382e3447798d7cd406225d15dcd82d186a289cc9bcd24","phone":null,"extra":"fec0858502efb923fe9341fed4001d17ace7523ed7987af346abee9e3f57760e"}}

-- If only an unpublished column changes, the message is an update whose two rows are equal.
UPDATE guest SET note = 'secret' WHERE id = 1;
-> {"entity": "guest", "key": "1",
    "provenance": {"source": {"table": "public.guest", "op": "update", "ordinal": 0, "mask": "7113caf8b3f64b6d"}},
    "current": {"id":1,"name":"Ada","email":"f7d0faeba3356c25e329d80cedc01fdcbbb328c1a98003b75e7f26b3eb0e3ac9","phone":null,"extra":"fec0858502efb923fe9341fed4001d17ace7523ed7987af346abee9e3f57760e"},
    "original": {"id":1,"name":"Ada","email":"f7d0faeba3356c25e329d80cedc01fdcbbb328c1a98003b75e7f26b3eb0e3ac9","phone":null,"extra":"fec0858502efb923fe9341fed4001d17ace7523ed7987af346abee9e3f57760e"}}

INSERT INTO room VALUES (1, 'Blue', 'the safe is behind the picture');
-> {"entity": "room", "key": "1", "provenance": {"source": {"table": "public.room", "op": "create", "ordinal": 0}},
    "current": {"id":1,"name":"Blue"}}

UPDATE room SET secret = 'it was moved';
-> {"entity": "room", "key": "1", "provenance": {"source": {"table": "public.room", "op": "update", "ordinal": 0}},
    "current": {"id":1,"name":"Blue"}, "original": {"id":1,"name":"Blue"}}
