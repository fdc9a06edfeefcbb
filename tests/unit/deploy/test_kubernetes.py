"""The manifests for Kubernetes fit each other, the image, the pipeline's file and the routes that are served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

import dblog
from dblog.control.guard import OPEN
from dblog.pipelines.config import Config, read_config
from dblog.pipelines.running import DRAIN_SECONDS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/kubernetes"
Document = dict[str, Any]
KUSTOMIZATION: Document = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
DOCUMENTS: list[Document] = [
    each for name in KUSTOMIZATION["resources"] for each in yaml.safe_load_all((FOLDER / name).read_text())
]
TEMPLATE: Document = yaml.safe_load((FOLDER / "executor.yaml").read_text())
SECRET: Document = yaml.safe_load((FOLDER / "secret.example.yaml").read_text())
VERSIONS = {
    "Namespace": "v1",
    "ServiceAccount": "v1",
    "Service": "v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "StatefulSet": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}


def of_kind(kind: str) -> Document:
    (found,) = [each for each in DOCUMENTS if each["kind"] == kind]
    return found


PIPELINE = of_kind("StatefulSet")["spec"]
POD = PIPELINE["template"]["spec"]
(CONTAINER,) = POD["containers"]
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
LABELS = PIPELINE["template"]["metadata"]["labels"]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    for name in SECRET["stringData"]:
        monkeypatch.setenv(name, f"secret of {name}")
    monkeypatch.setenv("HOSTNAME", f"{of_kind('StatefulSet')['metadata']['name']}-0")
    return read_config(FOLDER / "shop.toml")


def test_every_document_is_of_a_known_kind_and_has_a_name() -> None:
    assert {each["kind"]: each["apiVersion"] for each in DOCUMENTS} == VERSIONS
    assert all(each["metadata"]["name"] for each in DOCUMENTS)


def test_every_file_is_used() -> None:
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    used = {*KUSTOMIZATION["resources"], *generated["files"], "kustomization.yaml", "secret.example.yaml"}
    assert {path.name for path in FOLDER.iterdir()} == used


def test_selectors_find_the_pod() -> None:
    assert PIPELINE["selector"]["matchLabels"] == LABELS
    assert of_kind("Service")["spec"]["selector"] == LABELS
    assert of_kind("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == LABELS


def test_the_image_has_the_version_of_the_package(config: Config) -> None:
    (image,) = KUSTOMIZATION["images"]
    assert image["name"] == CONTAINER["image"]
    assert image["newTag"] == dblog.__version__
    assert config.spark["spark.kubernetes.container.image"] == f"{image['newName']}:{dblog.__version__}"


def test_the_command_reads_the_file_that_is_mounted() -> None:
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    (volume,) = [each["name"] for each in POD["volumes"] if each.get("configMap") == {"name": generated["name"]}]
    (where,) = [each["mountPath"] for each in CONTAINER["volumeMounts"] if each["name"] == volume]
    command, file = CONTAINER["args"]
    assert command == "run"
    assert file == f"{where}/shop.toml"
    assert Path(file).name in generated["files"]


def test_every_volume_that_is_mounted_exists_and_the_rest_is_read_only() -> None:
    claims = {each["metadata"]["name"] for each in PIPELINE["volumeClaimTemplates"]}
    assert {each["name"] for each in CONTAINER["volumeMounts"]} == claims | {each["name"] for each in POD["volumes"]}
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {each["mountPath"] for each in CONTAINER["volumeMounts"] if not each.get("readOnly")}
    assert writable == {re.findall(r"^VOLUME (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0], "/tmp"}


def test_the_pods_fulfil_the_restricted_standard_as_the_user_of_the_image() -> None:
    user = int(re.findall(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0])
    assert of_kind("Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in (POD, TEMPLATE["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == user
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_secret_has_what_the_file_takes_from_the_environment() -> None:
    named = set(re.findall(r'env = "(\w+)"', (FOLDER / "shop.toml").read_text()))
    assert set(SECRET["stringData"]) == named | {"DBLOG_STATE"}
    assert all("change-me" in value for value in SECRET["stringData"].values())
    assert [each["secretRef"]["name"] for each in CONTAINER["envFrom"]] == [SECRET["metadata"]["name"]]
    assert SECRET["metadata"]["namespace"] == KUSTOMIZATION["namespace"] == of_kind("Namespace")["metadata"]["name"]


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probes_ask_routes_that_are_open_at_the_port_that_is_served(probe: str, config: Config) -> None:
    asked = CONTAINER[probe]["httpGet"]
    url = urlsplit(asked["path"])
    assert url.path in OPEN
    assert url.path == ("/health/ready" if probe == "readinessProbe" else "/health/live")
    assert config.http == f"0.0.0.0:{PORTS[asked['port']]}"
    assert config.token is not None, "without it the API does not listen on this address"
    assert config.alone, "a stream has the name of its pipeline if it is the only one"
    assert parse_qs(url.query).get("pipeline", [config.name]) == [config.name]


def test_a_stop_leaves_time_for_the_batches_to_end() -> None:
    assert POD["terminationGracePeriodSeconds"] >= DRAIN_SECONDS + 20


def test_several_pods_run_only_with_a_lease(config: Config) -> None:
    assert PIPELINE["replicas"] == 1 or config.standby
    assert "standby = true" in (ROOT / "deploy/README.md").read_text()


def test_executors_find_the_driver(config: Config) -> None:
    service, spark = of_kind("Service"), config.spark
    name, namespace = service["metadata"]["name"], KUSTOMIZATION["namespace"]
    pod = f"{of_kind('StatefulSet')['metadata']['name']}-0"
    assert PIPELINE["serviceName"] == name
    assert spark["spark.driver.host"] == f"{pod}.{name}.{namespace}.svc"
    assert spark["spark.kubernetes.driver.pod.name"] == pod
    assert spark["spark.kubernetes.namespace"] == namespace
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    ports = {each["targetPort"]: each["port"] for each in service["spec"]["ports"]}
    assert ports == PORTS
    assert (spark["spark.driver.port"], spark["spark.blockManager.port"]) == (
        str(ports["driver"]),
        str(ports["blocks"]),
    )
    assert str(config.master).startswith("k8s://")


def test_the_state_store_is_a_database_that_all_pods_reach(config: Config) -> None:
    assert config.state is None, "that of the environment: commands in the pod find it too"
    assert urlsplit(SECRET["stringData"]["DBLOG_STATE"]).scheme == "postgresql"


def test_what_executors_share_is_not_on_a_disk_of_the_driver(config: Config) -> None:
    assert str(config.folder).startswith("s3://")
    assert all(str(sink.settings["path"]).startswith("s3://") for sink in config.sinks)


def test_the_template_of_executors_is_mounted_and_may_connect(config: Config) -> None:
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    assert Path(config.spark["spark.kubernetes.executor.podTemplateFile"]).name in generated["files"]
    rules = of_kind("NetworkPolicy")["spec"]["ingress"]
    allowed: list[tuple[Mapping[str, str], set[str]]] = [
        (each["podSelector"]["matchLabels"], {port["port"] for port in rule["ports"]})
        for rule in rules
        for each in rule["from"]
        if "podSelector" in each
    ]
    assert allowed == [(TEMPLATE["metadata"]["labels"], {"driver", "blocks"})]
    assert {port["port"] for rule in rules for port in rule["ports"]} == set(PORTS)


def test_the_driver_may_do_with_pods_what_spark_does() -> None:
    rules = {name: set(rule["verbs"]) for rule in of_kind("Role")["rules"] for name in rule["resources"]}
    assert {"get", "list", "watch", "create", "delete", "deletecollection"} <= rules["pods"]
    assert "secrets" not in rules
    bound = of_kind("RoleBinding")
    assert bound["roleRef"]["name"] == of_kind("Role")["metadata"]["name"]
    assert [each["name"] for each in bound["subjects"]] == [POD["serviceAccountName"]]
    assert of_kind("ServiceAccount")["metadata"]["name"] == POD["serviceAccountName"]
