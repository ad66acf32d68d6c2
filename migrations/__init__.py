"""The database's schema, from zero and back, with Alembic."""
