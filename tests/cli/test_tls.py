"""The command line over TLS."""

from pathlib import Path

import pytest

from tests.cli.test_commands import rocketsim
from tests.support.broker_thread import broker_thread
from tests.support.tls import CA, DATA, OTHER_CA, keys_of


def test_options_before_the_command_and_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketsim_client.tls.PROBE_S", 60.0)
    with broker_thread(tmp_path, tls_client_auth="listenPort", **keys_of()) as broker:
        command = ("admin", "brokerStatus", "-b", broker.brokers["broker-a"][0])
        own = ("--tls-cert", str(DATA / "client.pem"), "--tls-key", str(DATA / "client.key"))
        done = rocketsim("--tls", "--tls-ca", str(CA), *own, *command)
        assert done.returncode == 0 and "broker-a" in done.stdout, done.stderr
        assert "the server speaks TLS, and this client plaintext" in rocketsim(*command).stderr
        refused = rocketsim("--tls", "--tls-ca", str(OTHER_CA), *own, *command)
        assert refused.returncode == 1 and f"(checked with tlsCa={OTHER_CA})" in refused.stderr
        for name, value in {"": "true", "_CA": CA, "_CERT": DATA / "client.pem", "_KEY": DATA / "client.key"}.items():
            monkeypatch.setenv(f"ROCKETSIM_TLS{name}", str(value))
        assert rocketsim(*command).returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tls-ca", str(CA)), "--tls-ca: TLS is off; give --tls, too"),
        (("--tls", "--tls-cert", str(CA)), "--tls-cert and --tls-key are a pair"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: tuple[str, ...], said: str) -> None:
    done = rocketsim(*options, "admin", "topicList", "-n", "127.0.0.1:1")
    assert done.returncode == 2 and said in done.stderr
