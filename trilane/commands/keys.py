"""`trilane keys`: the API keys, straight in the database."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import click
from pydantic import SecretStr
from sqlalchemy import Connection

from jobs import settings as settings_module
from jobs.secrets import Vault, new_signing_secret
from jobs.settings import Settings, SettingsError
from jobs.store import tenants
from jobs.store.engine import open_engine
from trilane.remote import STACK_FILE, running_stack


@click.group()
def keys() -> None:
    """Create, list and revoke API keys.

    The database is TRILANE_DATABASE_URL's, else that of the stack that runs in this directory.
    """


@keys.command()
@click.option("--tenant", required=True, help="Whose key it is; a new name makes a new tenant.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(tenant: str, as_json: bool) -> None:
    """Create a key. It is shown now and never again, as is the webhook secret of a tenant without one."""
    settings = _settings()
    vault, secret = Vault(settings), new_signing_secret()
    with _transaction(settings) as connection:
        whose = tenants.get_or_create(connection, tenant)
        is_new = tenants.set_signing_secret(connection, whose.id, vault.encrypt(secret))
        key = tenants.create_key(connection, whose.id)
    shown = {"tenant": tenant, "api_key": key} | ({"signing_secret": secret} if is_new else {})
    if as_json:
        click.echo(json.dumps(shown))
        return
    for name, value in shown.items():
        click.echo(f"{name:<15} {value}")
    click.echo("Keep what is shown: it cannot be shown again.", err=True)


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one key a line.")
def list_keys(as_json: bool) -> None:
    """List all keys by their first characters."""
    with _transaction(_settings()) as connection:
        found = tenants.keys(connection)
    for info in found:
        revoked = info.revoked_at.isoformat(timespec="seconds") if info.revoked_at else None
        row = {
            "id": str(info.id),
            "tenant": info.tenant,
            "key": f"{info.hint}...",
            "created_at": info.created_at.isoformat(timespec="seconds"),
            "revoked_at": revoked,
        }
        click.echo(json.dumps(row) if as_json else "  ".join(value or "in use" for value in row.values()))


@keys.command()
@click.argument("key_id", type=click.UUID)
def revoke(key_id: uuid.UUID) -> None:
    """End the key with this id (see `trilane keys list`), within seconds everywhere."""
    with _transaction(_settings()) as connection:
        if not tenants.revoke_key(connection, key_id):
            raise click.ClickException(f"no live key {key_id}: `trilane keys list` shows them")
    click.echo(f"{key_id} revoked")


def _settings() -> Settings:
    settings = settings_module.load()
    stack = None if settings.database_url else running_stack()
    if stack is not None:
        secret_key = settings.secret_key or SecretStr((STACK_FILE.parent / "secret_key").read_text())
        return settings_module.load(database_url=stack["database_url"], secret_key=secret_key)
    if not settings.database_url:
        raise SettingsError("setting database_url is missing: set TRILANE_DATABASE_URL, or run `trilane up`")
    return settings


@contextmanager
def _transaction(settings: Settings) -> Iterator[Connection]:
    engine = open_engine(settings.database_url, pool_size=1)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()
