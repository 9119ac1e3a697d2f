"""What may listen where, and what is refused before anything listens."""

import pytest

from monitor.config import Config, InvalidConfiguration, is_loopback, load, replaced

TLS = 'certificate = "c.pem"\nkey = "k.pem"\n'
TOKEN = 'data_token_file = "t"\n'
OPEN = 'grpc_address = "0.0.0.0:50051"\n'


def loaded(tmp_path, text) -> Config:
    path = tmp_path / "sidecar.toml"
    path.write_text(text, "utf-8")
    return load(path)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("vehicle", False),
        ("127.0.0.1.example", False),
        ("", False),
    ],
)
def test_what_this_machine_alone_reaches_is_loopback(host, loopback):
    assert is_loopback(host) == loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "vehicle"])
def test_a_network_without_tls_is_refused_with_its_remedies(tmp_path, host):
    with pytest.raises(InvalidConfiguration) as found:
        loaded(tmp_path, f'[server]\ngrpc_address = "{host}:50051"\n')
    for words in (host.strip("[]"), "without TLS", "certificate and key", "allow_plain_text"):
        assert words in str(found.value)


@pytest.mark.parametrize(
    "text",
    [
        f"[server]\n{OPEN}[security]\n{TLS}client_authority = 'a.pem'",
        f"[server]\n{OPEN}[security]\n{TLS}admin_token_file = 't'",
        f"[server]\n{OPEN}[security]\n{TLS}allow_open_administration = true",
        f"[security]\n{TLS}",
        f"[server]\n{OPEN}[security]\n{TLS}{TOKEN}client_authority = 'a.pem'",
        f"[server]\n{OPEN}[security]\nallow_plain_text = true",
        '[server]\nhttp_address = "0.0.0.0:1"\n[security]\nallow_plain_metrics = true',
        f"[security]\n{TOKEN}",
        '[server]\ngrpc_address = "[::1]:0"\nhttp_address = "localhost:0"',
    ],
)
def test_what_is_encrypted_or_meant_or_stays_here_is_taken(tmp_path, text):
    loaded(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"[server]\n{OPEN}[security]\n{TOKEN}", "tokens would go over the network"),
        (
            f"[server]\n{OPEN}[security]\nallow_plain_text = true\n{TOKEN}",
            "data_token_file: tokens would go over the network in plain text",
        ),
        (f"[server]\n{OPEN}[security]\n{TLS}", "client_authority or admin_token_file"),
        (f"[server]\n{OPEN}[security]\n{TLS}{TOKEN}", "whoever connects may promote"),
        (
            f"[server]\n{OPEN}[security]\nallow_open_administration = true",
            "allow_plain_text = true",
        ),
        ('[server]\nhttp_address = "0.0.0.0:1"', "allow_plain_metrics = true"),
        (
            '[server]\nhttp_address = "0.0.0.0:1"\n[security]\nallow_plain_text = true',
            "allow_plain_metrics = true",
        ),
        ('[security]\ncertificate = "c.pem"', "certificate 'c.pem' without key"),
        ('[security]\nkey = "k.pem"', "key 'k.pem' without certificate"),
        ('[security]\nclient_authority = "a.pem"', "client_authority 'a.pem' without certificate"),
        ("[security]\nreload_seconds = 0.0", "reload_seconds"),
    ],
)
def test_what_others_could_listen_to_or_what_is_half_said_is_refused(tmp_path, text, said):
    with pytest.raises(InvalidConfiguration, match=said):
        loaded(tmp_path, text)


def test_addresses_of_the_command_line_are_held_to_the_same():
    with pytest.raises(InvalidConfiguration, match=r"command line: .*without TLS"):
        replaced(Config(), {("server", "grpc_address"): "0.0.0.0:1"})
    with pytest.raises(InvalidConfiguration, match="allow_plain_metrics"):
        replaced(Config(), {("server", "http_address"): "0.0.0.0:1"})
