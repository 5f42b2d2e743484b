"""Answers what the state of a row is now, over HTTP: `changelog views serve`.

A *view* shows the rows of one entity. An *engine* knows the last state of every key; `served` has its interface. The
engine in `files/` reads a file log or an archive. Everything else here is the same for every engine: `columns` and
`where` of a view are applied when a row is read, and `http/` makes the answers.
"""
