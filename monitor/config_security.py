"""Who may reach the sidecar, and who may do what: the files that say so, and what is refused."""

from __future__ import annotations

import ipaddress
from typing import Self

from pydantic import PositiveFloat, model_validator

from monitor.config_section import Section


class SecurityConfig(Section):
    """Certificates and tokens, each a path of a file; empty: there is none.

    certificate + key      TLS; PEM, the certificate followed by those between it and its authority
    client_authority       PEM; clients, too, must have a certificate, of one of these authorities
    *_token_file           one bearer token a line; who has none of them may not use the right
    """

    certificate: str = ""
    key: str = ""
    client_authority: str = ""
    data_token_file: str = ""  # Process, ProcessFrame, GetCalibration, WatchEvents
    truth_token_file: str = ""  # ReportGroundTruth
    admin_token_file: str = ""  # all of these, recalibrators, export and import, acknowledging
    reload_seconds: PositiveFloat = 60.0  # s; how often the files are looked at for a change
    allow_plain_text: bool = False  # True: gRPC may listen on a network without TLS
    # True: over TLS on a network, whoever connects may administer, with neither a certificate of
    # its own nor a token.
    allow_open_administration: bool = False
    allow_plain_metrics: bool = False  # True: HTTP, which has no TLS, may listen on a network

    @model_validator(mode="after")
    def _in_pairs(self) -> Self:
        for given, missing in (("certificate", "key"), ("key", "certificate")):
            if getattr(self, given) and not getattr(self, missing):
                raise ValueError(
                    f"{given} '{getattr(self, given)}' without {missing}: name both for TLS, or "
                    "neither for plain text"
                )
        if self.client_authority and not self.certificate:
            raise ValueError(
                f"client_authority '{self.client_authority}' without certificate and key: clients "
                "are asked for a certificate over TLS only. Name these as well"
            )
        return self

    @property
    def tls(self) -> bool:
        """Whether gRPC is encrypted."""
        return bool(self.certificate)

    @property
    def token_files(self) -> dict[str, str]:
        """Path by key, of those that are named."""
        keys = ("data_token_file", "truth_token_file", "admin_token_file")
        return {key: path for key in keys if (path := getattr(self, key))}


def check_exposure(security: SecurityConfig, grpc_host: str, http_host: str) -> None:
    """Raises ValueError where others could listen in or take over, and nobody has said that they
    may.
    """
    if not is_loopback(grpc_host) and security.tls and not _keeps_strangers_out(security):
        raise ValueError(
            f"[server] grpc_address is on {grpc_host}, which other machines can reach, and whoever "
            "connects may promote recalibrators and import statistics. Name [security] "
            "client_authority or admin_token_file, listen on 127.0.0.1, or, where all of them may, "
            "set [security] allow_open_administration = true"
        )
    if not is_loopback(grpc_host) and not security.tls:
        if security.token_files:
            raise ValueError(
                f"[security] {', '.join(security.token_files)}: tokens would go over the network "
                f"in plain text, since [server] grpc_address is on {grpc_host}. Name a certificate "
                "and a key, or listen on 127.0.0.1"
            )
        if not security.allow_plain_text:
            raise ValueError(
                f"[server] grpc_address is on {grpc_host}, which other machines can reach, without "
                "TLS. Name [security] certificate and key, listen on 127.0.0.1, or, on a network "
                "that you trust, set [security] allow_plain_text = true"
            )
    if not is_loopback(http_host) and not security.allow_plain_metrics:
        raise ValueError(
            f"[server] http_address is on {http_host}, which other machines can reach, and has no "
            "TLS. Listen on 127.0.0.1, or, where others may read the statistics, set [security] "
            "allow_plain_metrics = true"
        )


def _keeps_strangers_out(security: SecurityConfig) -> bool:
    """Whether nobody can administer who was given neither a certificate nor a token."""
    shown = bool(security.client_authority or security.admin_token_file)
    return shown or security.allow_open_administration


def is_loopback(host: str) -> bool:
    """Whether this machine alone reaches it; a name other than localhost may be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
