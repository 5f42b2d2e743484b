"""Character sets: texts become UTF-8."""
