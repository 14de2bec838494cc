"""A private authority, and a certificate of it for 127.0.0.1: what a company puts before its own store."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_DAYS = timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """Files: the authority's certificate, the server's, and the server's key."""

    authority: Path
    chain: Path
    key: Path


def make_certificate(directory: Path) -> Certificate:
    """Make an authority and a certificate of it in a directory."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Authority of a test")])
    server_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    authority = _signed(authority_name, authority_key, authority_name, authority_key, x509.BasicConstraints(True, None))
    names = x509.SubjectAlternativeName([address, x509.DNSName("localhost")])
    server = _signed(server_name, server_key, authority_name, authority_key, names)
    made = Certificate(directory / "authority.pem", directory / "server.pem", directory / "server.key")
    made.authority.write_bytes(_pem(authority))
    made.chain.write_bytes(_pem(server))
    made.key.write_bytes(_pem_of_key(server_key))
    return made


def _signed(name: Any, key: Any, by: Any, by_key: Any, extension: Any) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    now = datetime.now(UTC)
    wanted = x509.CertificateBuilder().subject_name(name).issuer_name(by).public_key(key.public_key())
    wanted = wanted.serial_number(x509.random_serial_number())
    wanted = wanted.not_valid_before(now - _DAYS).not_valid_after(now + _DAYS)
    return wanted.add_extension(extension, critical=False).sign(by_key, hashes.SHA256())


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    data: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return data


def _pem_of_key(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    data: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return data
