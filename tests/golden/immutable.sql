-- Behavioural events are written once and must not change. If somebody changes one, the entity's policy says what
-- happens.
--# mysql = true
--# [entities.event]
--# table = "public.event"
--# immutable = true
--# [entities.click]
--# table = "public.click"
--# immutable = true
--# on_change_of_immutable = "ignore"

CREATE TABLE event (id int PRIMARY KEY, what text);
ALTER TABLE event REPLICA IDENTITY FULL;
CREATE TABLE click (id int PRIMARY KEY, what text);

--> run

INSERT INTO event VALUES (1, 'searched'), (2, 'booked');
-> {"entity": "event", "key": "1", "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 0}},
    "current": {"id":1,"what":"searched"}}
-> {"entity": "event", "key": "2", "provenance": {"source": {"table": "public.event", "op": "create", "ordinal": 2}},
    "current": {"id":2,"what":"booked"}}

INSERT INTO click VALUES (1, 'logo');
-> {"entity": "click", "key": "1", "provenance": {"source": {"table": "public.click", "op": "create", "ordinal": 0}},
    "current": {"id":1,"what":"logo"}}

UPDATE click SET what = 'nothing';

DELETE FROM click;

UPDATE event SET what = 'cancelled' WHERE id = 2;
-> {"stop": "a row of the table public.event was changed, and the entity event is immutable"}

-- The operator skips the change, so it is never published.
--> accept skip

DELETE FROM event WHERE id = 2;
-> {"stop": "a row of the table public.event was changed, and the entity event is immutable"}

-- The operator sends the change to the dead letters, where somebody can look at it.
--> accept dead-letter
-> {"entity": "dead", "key": "event", "provenance": {"source": {"table": "public.event", "op": "delete", "ordinal": 0}},
    "current": null, "original": {"id":2,"what":"cancelled"}}
