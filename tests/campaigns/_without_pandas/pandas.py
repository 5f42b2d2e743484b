"""Hides pandas: on a service's path, this module precedes the real pandas, so pyarrow cannot import pandas."""

raise ImportError("the service is installed without pandas")
