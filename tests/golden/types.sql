-- The JSON value of every type. docs/reference/types.md has the rules.
--# [tables]
--# include = ["public.*"]

CREATE TABLE numbers (id int PRIMARY KEY, s smallint, b bigint, r real, d double precision, n numeric, m money, o oid);
CREATE TABLE texts (id int PRIMARY KEY, c char(5), v varchar(9), t text, n name, y bytea, q "char");
CREATE TABLE times (id int PRIMARY KEY, d date, t time, z timetz, s timestamp, w timestamptz, i interval);
CREATE TABLE nets (id int PRIMARY KEY, i inet, c cidr, m macaddr, k macaddr8, u uuid, b bit(4), v bit varying);
CREATE TABLE arrays (id int PRIMARY KEY, i int[], t text[], d timestamptz[], n numeric[], j jsonb[], b bool[]);
CREATE TABLE ranges (id int PRIMARY KEY, i int4range, n numrange, w tstzrange, d daterange, m int4multirange);
CREATE TABLE shapes (id int PRIMARY KEY, p point, b box, c circle, h path, g polygon, l lseg, k line);
CREATE TYPE mood AS ENUM ('calm', 'härter');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN small AS positive CHECK (value < 10);
CREATE TYPE address AS (street text, number int, since date);
CREATE TYPE person AS (name text, home address, moods mood[]);
CREATE TABLE made (id int PRIMARY KEY, m mood, ms mood[], s small, ss small[], a address, p person, ps address[]);
CREATE TABLE rest (id int PRIMARY KEY, v tsvector, q tsquery, l pg_lsn, p jsonpath, r regclass);

--> run

INSERT INTO numbers VALUES
  (1, -32768, 9223372036854775807, 1.1, 0.1, 1.50, 12.5, 4294967295),
  (2, 0, -9223372036854775808, 'NaN', '-Infinity', 'NaN', -1, 0),
  (3, 1, 1, 1e-45, 1.7976931348623157e308, 'Infinity', 0, 1),
  (4, 1, 1, '-0', 1e15, 123456789012345678901234567890.000000000000001, 92233720368547758.07, 1),
  (5, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
-> {"entity": "numbers", "key": "1", "provenance": {"source": {"table": "public.numbers", "op": "create", "ordinal": 0}},
    "current": {"id":1,"s":-32768,"b":9223372036854775807,"r":1.1,"d":0.1,"n":"1.50","m":"$12.50","o":4294967295}}
-> {"entity": "numbers", "key": "2", "provenance": {"source": {"table": "public.numbers", "op": "create", "ordinal": 2}},
    "current": {"id":2,"s":0,"b":-9223372036854775808,"r":"NaN","d":"-Infinity","n":"NaN","m":"-$1.00","o":0}}
-> {"entity": "numbers", "key": "3", "provenance": {"source": {"table": "public.numbers", "op": "create", "ordinal": 4}},
    "current": {"id":3,"s":1,"b":1,"r":1e-45,"d":1.7976931348623157e+308,"n":"Infinity","m":"$0.00","o":1}}
-> {"entity": "numbers", "key": "4", "provenance": {"source": {"table": "public.numbers", "op": "create", "ordinal": 6}},
    "current": {"id":4,"s":1,"b":1,"r":-0,"d":1e+15,"n":"123456789012345678901234567890.000000000000001","m":"$92,233,720,368,547,758.07","o":1}}
-> {"entity": "numbers", "key": "5", "provenance": {"source": {"table": "public.numbers", "op": "create", "ordinal": 8}},
    "current": {"id":5,"s":null,"b":null,"r":null,"d":null,"n":null,"m":null,"o":null}}

INSERT INTO texts VALUES
  (1, 'ab', 'v', 'line' || chr(10) || 'tab' || chr(9) || 'quote " backslash \ slash / bell' || chr(7), 'n', '\x00ff10', 'q'),
  (2, '', '', '', '', '', ''),
  (3, 'äöü', '日本', '🛎 ' || chr(8232) || chr(127), 'ñ', '\x41', 'Z');
-> {"entity": "texts", "key": "1", "provenance": {"source": {"table": "public.texts", "op": "create", "ordinal": 0}},
    "current": {"id":1,"c":"ab   ","v":"v","t":"line\ntab\tquote \" backslash \\ slash / bell\u0007","n":"n","y":"AP8Q","q":"q"}}
-> {"entity": "texts", "key": "2", "provenance": {"source": {"table": "public.texts", "op": "create", "ordinal": 2}},
    "current": {"id":2,"c":"     ","v":"","t":"","n":"","y":"","q":""}}
-> {"entity": "texts", "key": "3", "provenance": {"source": {"table": "public.texts", "op": "create", "ordinal": 4}},
    "current": {"id":3,"c":"äöü  ","v":"日本","t":"🛎  ","n":"ñ","y":"QQ==","q":"Z"}}

INSERT INTO times VALUES
  (1, '2026-11-21', '03:10:02.5', '03:10:02+02', '2026-11-21 03:10:02.886044', '2026-11-21 03:10:02.886044+01', '1 year 2 mons 3 days 04:05:06.789'),
  (2, '0044-03-15 BC', '24:00:00', '24:00:00-15:59', '0044-03-15 12:00:00 BC', '0001-01-01 00:00:00+00 BC', '-1 day'),
  (3, 'infinity', '00:00', '00:00+00', '-infinity', 'infinity', '0'),
  (4, '9999-12-31', '23:59:59.999999', '23:59:59.999999+14:30', '10000-01-01', '9999-12-31 23:59:59.999999+00', '-1 year +1 day -00:00:00.000001'),
  (5, '0001-01-01', '00:00:00.1', '00:00-00:30', '0001-01-01', '294276-12-31 23:59:59.999999+00', '178000000 years');
-> {"entity": "times", "key": "1", "provenance": {"source": {"table": "public.times", "op": "create", "ordinal": 0}},
    "current": {"id":1,"d":"2026-11-21","t":"03:10:02.5","z":"03:10:02+02","s":"2026-11-21T03:10:02.886044","w":"2026-11-21T02:10:02.886044Z","i":"P1Y2M3DT4H5M6.789S"}}
-> {"entity": "times", "key": "2", "provenance": {"source": {"table": "public.times", "op": "create", "ordinal": 2}},
    "current": {"id":2,"d":"0044-03-15 BC","t":"24:00:00","z":"24:00:00-15:59","s":"0044-03-15 12:00:00 BC","w":"0001-01-01 00:00:00+00 BC","i":"P-1D"}}
-> {"entity": "times", "key": "3", "provenance": {"source": {"table": "public.times", "op": "create", "ordinal": 4}},
    "current": {"id":3,"d":"infinity","t":"00:00:00","z":"00:00:00+00","s":"-infinity","w":"infinity","i":"PT0S"}}
-> {"entity": "times", "key": "4", "provenance": {"source": {"table": "public.times", "op": "create", "ordinal": 6}},
    "current": {"id":4,"d":"9999-12-31","t":"23:59:59.999999","z":"23:59:59.999999+14:30","s":"10000-01-01 00:00:00","w":"9999-12-31T23:59:59.999999Z","i":"P-1Y1DT-0.000001S"}}
-> {"entity": "times", "key": "5", "provenance": {"source": {"table": "public.times", "op": "create", "ordinal": 8}},
    "current": {"id":5,"d":"0001-01-01","t":"00:00:00.1","z":"00:00:00-00:30","s":"0001-01-01T00:00:00.000000","w":"294276-12-31 23:59:59.999999+00","i":"P178000000Y"}}

INSERT INTO nets VALUES
  (1, '192.168.0.1/24', '10.0.0.0/8', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', B'1010', B''),
  (2, '::1', '2001:db8::/32', '08002b010203', '08002b0102030405', '{a0eebc999c0b4ef8bb6d6bb9bd380a11}', B'0000', B'1');
-> {"entity": "nets", "key": "1", "provenance": {"source": {"table": "public.nets", "op": "create", "ordinal": 0}},
    "current": {"id":1,"i":"192.168.0.1/24","c":"10.0.0.0/8","m":"08:00:2b:01:02:03","k":"08:00:2b:01:02:03:04:05","u":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","b":"1010","v":""}}
-> {"entity": "nets", "key": "2", "provenance": {"source": {"table": "public.nets", "op": "create", "ordinal": 2}},
    "current": {"id":2,"i":"::1","c":"2001:db8::/32","m":"08:00:2b:01:02:03","k":"08:00:2b:01:02:03:04:05","u":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","b":"0000","v":"1"}}

INSERT INTO arrays VALUES
  (1, '{1,NULL,3}', '{"a b",NULL,"NULL","","\"q\" \\"}', '{2026-01-01 00:00+00,infinity}', '{1.0,NaN}', array['{"a": 1}', 'null', NULL]::jsonb[], '{t,f,NULL}'),
  (2, '{{1,2},{3,4}}', '{}', '{}', '{{{1}}}', '{}', '{}'),
  (3, '[2:3]={1,2}', '[0:0]={x}', NULL, NULL, NULL, NULL);
-> {"entity": "arrays", "key": "1", "provenance": {"source": {"table": "public.arrays", "op": "create", "ordinal": 0}},
    "current": {"id":1,"i":[1,null,3],"t":["a b",null,"NULL","","\"q\" \\"],"d":["2026-01-01T00:00:00.000000Z","infinity"],"n":["1.0","NaN"],"j":[{"a": 1},null,null],"b":[true,false,null]}}
-> {"entity": "arrays", "key": "2", "provenance": {"source": {"table": "public.arrays", "op": "create", "ordinal": 2}},
    "current": {"id":2,"i":[[1,2],[3,4]],"t":[],"d":[],"n":[[["1"]]],"j":[],"b":[]}}
-> {"entity": "arrays", "key": "3", "provenance": {"source": {"table": "public.arrays", "op": "create", "ordinal": 4}},
    "current": {"id":3,"i":"[2:3]={1,2}","t":"[0:0]={x}","d":null,"n":null,"j":null,"b":null}}

INSERT INTO ranges VALUES
  (1, '[1,5]', '(1.5,2.50]', '[2026-01-01 00:00+00,infinity)', '(,2026-01-01)', '{[1,2],[5,9)}'),
  (2, 'empty', '(,)', NULL, '[2026-01-01,]', '{}');
-> {"entity": "ranges", "key": "1", "provenance": {"source": {"table": "public.ranges", "op": "create", "ordinal": 0}},
    "current": {"id":1,"i":{"lower":1,"upper":6,"bounds":"[)"},"n":{"lower":"1.5","upper":"2.50","bounds":"(]"},"w":{"lower":"2026-01-01T00:00:00.000000Z","upper":"infinity","bounds":"[)"},"d":{"lower":null,"upper":"2026-01-01","bounds":"()"},"m":[{"lower":1,"upper":3,"bounds":"[)"},{"lower":5,"upper":9,"bounds":"[)"}]}}
-> {"entity": "ranges", "key": "2", "provenance": {"source": {"table": "public.ranges", "op": "create", "ordinal": 2}},
    "current": {"id":2,"i":{"lower":null,"upper":null,"bounds":"empty"},"n":{"lower":null,"upper":null,"bounds":"()"},"w":null,"d":{"lower":"2026-01-01","upper":null,"bounds":"[)"},"m":[]}}

INSERT INTO shapes VALUES (1, '(1,2.5)', '(1,1),(0,0)', '<(0,0),1.5>', '((0,0),(1,1))', '((0,0),(1,0),(1,1))', '[(0,0),(1,1)]', '{1,-1,0}');
-> {"entity": "shapes", "key": "1", "provenance": {"source": {"table": "public.shapes", "op": "create", "ordinal": 0}},
    "current": {"id":1,"p":"(1,2.5)","b":"(1,1),(0,0)","c":"<(0,0),1.5>","h":"((0,0),(1,1))","g":"((0,0),(1,0),(1,1))","l":"[(0,0),(1,1)]","k":"{1,-1,0}"}}

INSERT INTO made VALUES
  (1, 'härter', '{calm,NULL}', 1, '{1,2}', ('Main "St", 5', 5, '2026-01-01'), ('Ada', ('A', 1, NULL), '{calm}'), array[('B', 2, NULL), NULL]::address[]),
  (2, NULL, NULL, NULL, NULL, (NULL, NULL, NULL), (NULL, NULL, NULL), '{}');
-> {"entity": "made", "key": "1", "provenance": {"source": {"table": "public.made", "op": "create", "ordinal": 0}},
    "current": {"id":1,"m":"härter","ms":["calm",null],"s":1,"ss":[1,2],"a":{"street":"Main \"St\", 5","number":5,"since":"2026-01-01"},"p":{"name":"Ada","home":{"street":"A","number":1,"since":null},"moods":["calm"]},"ps":[{"street":"B","number":2,"since":null},null]}}
-> {"entity": "made", "key": "2", "provenance": {"source": {"table": "public.made", "op": "create", "ordinal": 2}},
    "current": {"id":2,"m":null,"ms":null,"s":null,"ss":null,"a":{"street":null,"number":null,"since":null},"p":{"name":null,"home":null,"moods":null},"ps":[]}}

INSERT INTO rest VALUES (1, 'a fat cat', 'fat & cat', '16/B374D848', '$.a[*]', 'pg_class');
-> {"entity": "rest", "key": "1", "provenance": {"source": {"table": "public.rest", "op": "create", "ordinal": 0}},
    "current": {"id":1,"v":"'a' 'cat' 'fat'","q":"'fat' & 'cat'","l":"16/B374D848","p":"$.\"a\"[*]","r":"pg_class"}}
