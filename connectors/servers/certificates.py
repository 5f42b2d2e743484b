"""Makes the certificates of a server on this machine: the server's own, and that of the authority that signed it."""

import ipaddress
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

CA, CERTIFICATE, KEY = "ca.pem", "server-cert.pem", "server-key.pem"
"""The names of the files: the authority's certificate, and the server's certificate and private key."""

_BEGIN, _END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)  # tests set clocks forward and back


def write_certificates(folder: Path) -> None:
    """Writes the three files to `folder`. The server's certificate is valid for localhost and 127.0.0.1.

    The keys are RSA keys, because MySQL 8.0.15 cannot use others. The authority's private key is not stored.
    """
    authority_key, server_key = _new_key(), _new_key()
    authority = _certificate("the authority of a temporary server", authority_key, None, authority_key)
    server = _certificate("a temporary server", server_key, authority, authority_key)
    (folder / CA).write_bytes(authority.public_bytes(Encoding.PEM))
    (folder / CERTIFICATE).write_bytes(server.public_bytes(Encoding.PEM))
    (folder / KEY).touch(mode=0o600)
    (folder / KEY).write_bytes(server_key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))


def _new_key() -> RSAPrivateKey:
    return generate_private_key(public_exponent=65_537, key_size=2048)


def _certificate(
    name: str, key: RSAPrivateKey, authority: x509.Certificate | None, authority_key: RSAPrivateKey
) -> x509.Certificate:
    """Returns a certificate for `key` that `authority` signed. Without `authority`, `key` itself signs it."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if authority:
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(authority_key, hashes.SHA256())
