"""Secrets at rest: encrypted with the operator's key (Fernet: AES-128-CBC with HMAC-SHA256)."""

import base64
import hashlib
import secrets

from cryptography.fernet import Fernet, InvalidToken

from jobs.settings import Settings, SettingsError

WEBHOOK_PREFIX = "whsec_"  # Standard Webhooks: the prefix of a symmetric signing secret


class Vault:
    """Encrypts and opens secrets with `TRILANE_SECRET_KEY`, any text of 32 characters or more."""

    def __init__(self, settings: Settings) -> None:
        """Raises `SettingsError` where the key is missing or short."""
        key = settings.secret_key.get_secret_value() if settings.secret_key else ""
        if len(key) < 32:
            raise SettingsError(
                "setting secret_key is missing or shorter than 32 characters: set TRILANE_SECRET_KEY"
                " to a long random text (`openssl rand -hex 32`) and keep it; secrets at rest need it"
            )
        derived = hashlib.sha256(b"trilane at rest" + key.encode()).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(derived))

    def encrypt(self, secret: str) -> str:
        """The form that is stored."""
        return self._fernet.encrypt(secret.encode()).decode()

    def decrypt(self, stored: str) -> str:
        """The secret itself. Raises `SettingsError` where it was stored under another key."""
        try:
            return self._fernet.decrypt(stored.encode()).decode()
        except InvalidToken:
            raise SettingsError(
                "a stored secret cannot be opened: TRILANE_SECRET_KEY is not the one it was encrypted with"
            ) from None


def new_signing_secret() -> str:
    """A webhook signing secret of 32 random bytes in the Standard Webhooks form."""
    return WEBHOOK_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
