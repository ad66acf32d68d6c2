"""The truth, in Postgres: one synchronous persistence layer on SQLAlchemy Core and psycopg."""
