"""The certificate with which the server answers over TLS; it can be read again while the server runs."""

import ssl

from mambad.engine.errors import ConfigError


class Certificate:
    """A certificate and its key, from files.

    Args:
        certfile: PEM with the certificate and those that vouch for it.
        keyfile: PEM with the key; None = it stands in `certfile`.

    Attributes:
        context: for the listening sockets.

    Raises:
        ConfigError: they can't be read, or don't belong together.
    """

    def __init__(self, certfile: str, keyfile: str | None) -> None:
        self._certfile = certfile
        self._keyfile = keyfile
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.load()

    def load(self) -> None:
        """Read the files; connections made from now on get what they hold. Raises ConfigError."""
        # On a context of its own first: what fails half-way must not spoil the one in use.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
            try:
                # Without a password function OpenSSL would ask at the terminal.
                context.load_cert_chain(self._certfile, self._keyfile, password=lambda: b"")
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
                files = " and ".join(filter(None, (self._certfile, self._keyfile)))
                raise ConfigError(f"--ssl-certfile: {files} can't be used: {reason}") from None


def certificate_of(certfile: str | None, keyfile: str | None) -> Certificate | None:
    """Return the certificate of these settings, if there is one. Raises ConfigError."""
    if certfile is not None:
        return Certificate(certfile, keyfile)
    if keyfile is not None:
        raise ConfigError("--ssl-keyfile needs --ssl-certfile")
    return None
