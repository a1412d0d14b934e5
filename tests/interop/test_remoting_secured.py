"""Tests RocketMQ's own producer and push consumer with access keys and TLS at the remoting ports of our pair.

`./run test --interop` runs these tests.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocketsim_client import Admin
from rocketsim_client.admin_model import AclPolicy
from testbed.polling import wait_until
from testbed.processes import Processes
from testbed.real_rocketmq import client_jars, free_port, run_java
from tests.interop.marks import INTEROP
from tests.interop.programs import CLIENT_VERSIONS
from tests.support.access import ADMIN, CONTROLLED, SIGNED
from tests.support.tls import CA, SERVER_TLS

pytestmark = INTEROP
PROGRAM = Path(__file__).parent / "Signed.java"
USER, PASSWORD = "shop", "sh0p-s3cr3t"
# By default, RocketMQ's client speaks TLS without checking the server's certificate (`tls.test.mode.enable`).
CLIENT_TLS = {"enable": "true", "test.mode.enable": "false", "client.authServer": "true", "client.trustCertPath": CA}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Starts a name server and a pair that take only signed calls over TLS.  Yields the remoting port's address of the
    name server, and an administrator of the pair.
    """
    name_server = f"127.0.0.1:{free_port()}"
    with Processes(tmp_path_factory.mktemp("secured")) as processes:
        port = name_server.rpartition(":")[2]
        namesrv = processes.start_namesrv(remotingPort=port, **SIGNED, **SERVER_TLS)
        keys = {"remotingPort": 0, "messageDelayLevel": "1s 5s", **CONTROLLED, **SERVER_TLS}
        master, _ = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER", **keys)
        wait_until(lambda: "writable" in master.log(), "the master takes writes")
        signed = {"access_key": ADMIN.access_key, "secret_key": ADMIN.secret_key}
        with Admin(namesrv.address, tls=True, tls_ca=CA, **signed) as admin:
            admin.create_user(USER, PASSWORD)
            yield SimpleNamespace(name_server=name_server, admin=admin)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_java_clients_with_access_keys_send_and_consume_over_tls(
    secured: SimpleNamespace, tmp_path: Path, version: str
) -> None:
    topic, group = f"secrets{version.replace('.', '')}", f"keepers{version.replace('.', '')}"
    secured.admin.update_topic(topic, read_queue_nums=2, write_queue_nums=2)
    rights = [AclPolicy(f"Topic:{topic}", ("Pub", "Sub")), AclPolicy(f"Group:{group}", ("Sub",))]
    secured.admin.create_acl(f"User:{USER}", rights)
    options = [f"-Dtls.{name}={value}" for name, value in CLIENT_TLS.items()]
    words = [str(PROGRAM), secured.name_server, topic, group, USER, PASSWORD]
    printed = run_java(client_jars(version), tmp_path, "256m", *options, *words)
    # 16 is NO_PERMISSION
    assert {"consumed 20 given back 1", "refused 16"} <= {*printed.splitlines()}, printed

    def behind() -> list[int]:
        return [one.diff for one in secured.admin.consumer_progress(group, topic)]

    wait_until(lambda: behind() == [0, 0], "the consumer's last offsets are committed")
