"""What a hostile operator does: every mistake is one clear line, and every way out that a line names is one."""

GUEST = """
CREATE TABLE guest (id int PRIMARY KEY, name text, email text);
ALTER TABLE guest REPLICA IDENTITY FULL;
INSERT INTO guest VALUES (1, 'Ada', 'ada@example.org')
"""
ONE = """
[entities.guest]
table = "public.guest"
"""
