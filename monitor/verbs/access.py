"""Options of the verbs that talk to a running sidecar: where it is, and how we show who we are."""

from __future__ import annotations

import argparse

from monitor.edges.credentials import Access


def add_sidecar(parser: argparse.ArgumentParser) -> None:
    """Where the sidecar is, and the options of add_access()."""
    parser.add_argument(
        "--address",
        metavar="H:P",
        default="127.0.0.1:50051",
        help="of the sidecar (default 127.0.0.1:50051)",
    )
    add_access(parser)


def add_access(parser: argparse.ArgumentParser) -> None:
    """Files that a sidecar with a [security] section asks for."""
    files = parser.add_argument_group("access", "where the sidecar has a [security] section")
    files.add_argument(
        "--certificate-authority",
        metavar="PEM",
        default="",
        help="that the certificate of the sidecar must be of (default: plain text)",
    )
    files.add_argument("--certificate", metavar="PEM", default="", help="of this client")
    files.add_argument("--key", metavar="PEM", default="", help="of that certificate")
    files.add_argument(
        "--token-file", metavar="F", default="", help="whose first line is our bearer token"
    )


def access_of(options: argparse.Namespace) -> Access:
    """What the options say. Raises InvalidAccess."""
    return Access(
        options.certificate_authority, options.certificate, options.key, options.token_file
    )
