"""Hides pandas: it precedes the real module on a service's path, so that pyarrow does not import that."""

raise ImportError("the service is installed without pandas")
