"""Tests mistakes of an operator. The service and the commands report each mistake in one clear line, and each remedy
that a line names works.
"""

GUEST = """
CREATE TABLE guest (id int PRIMARY KEY, name text, email text);
ALTER TABLE guest REPLICA IDENTITY FULL;
INSERT INTO guest VALUES (1, 'Ada', 'ada@example.org')
"""
ONE = """
[entities.guest]
table = "public.guest"
"""
