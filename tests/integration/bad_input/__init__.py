"""Tests mistakes that an operator can make. The service and the commands report each mistake in one line. If this line
names a remedy, the remedy works.
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
