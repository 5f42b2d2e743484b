"""Decodes what PostgreSQL's output plugin pgoutput sends into rows of the changelog. The package is pure."""
