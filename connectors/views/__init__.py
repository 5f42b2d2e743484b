"""Serves the present state of each row over HTTP: `changelog views serve`.

A *view* shows the rows of one entity. An *engine* knows the last state of every key; `served` has its interface. The
engine in `files/` reads a file log or an archive, and the engine in `streams/` reads Kafka. Everything else here is the
same for both engines: `shown` applies `columns` and `where` of a view when a row is read, and `http/` makes the
answers.
"""
