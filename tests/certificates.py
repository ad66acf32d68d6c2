"""A certificate authority for tests that serve TLS."""

import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from jobs.domain import clock


class Authority:
    """Issues certificates that only its own clients trust; its files lie in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Authority of a test")])
        ca = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._issue(self._name, self._key, ca)

    def client(self) -> ssl.SSLContext:
        """Trusts this authority alone."""
        return ssl.create_default_context(cadata=_pem(self._certificate))

    def server(self, host: str, asked: Callable[[str], None]) -> ssl.SSLContext:
        """Has a certificate for `host`; `asked` gets the name that each client asks for (SNI)."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = self._issue(name, key, x509.SubjectAlternativeName([x509.DNSName(host)]))
        file = self._directory / "server.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        file.write_text(private.decode() + _pem(certificate))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        context.sni_callback = lambda _socket, wanted, _context: asked(wanted)
        return context

    def _issue(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = clock.now()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
