"""Jobs on Spark over the changelog: read it anywhere, archive it, derive deltas and views.

Drivers read the configuration through `connectors`; what runs on executors imports only `envelope` and `schemas`.
"""
