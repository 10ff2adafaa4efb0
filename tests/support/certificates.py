"""A certificate authority of the tests' own."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificates:
    """``ca``: the file that clients trust."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the tests")])
        authority = x509.BasicConstraints(ca=True, path_length=0)
        self._id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        uses = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        made = self._builder(self._name, self._key.public_key()).add_extension(authority, critical=True)
        made = made.add_extension(self._id, critical=False).add_extension(uses, critical=True)
        self.ca = place / "ca.pem"
        self.ca.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        hour = datetime.timedelta(hours=1)
        return builder.not_valid_before(now - hour).not_valid_after(now + 24 * hour)

    def server(self, name: str) -> ssl.SSLContext:
        """For a server of this name or address."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            known: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            known = x509.DNSName(name)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName([known]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._id)
        made = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        file = self._place / f"{name}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context
