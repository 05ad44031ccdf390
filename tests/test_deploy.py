"""The files in config/deploy agree with the code that they deploy: ports, paths, names, times."""

import json
import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from proxy.assembly import create_app
from proxy.metrics import TABLE
from proxy.settings import Settings
from proxy.settings_sections import ServerSettings
from proxy.settings_source import load_settings
from tests.commands import ROOT
from tests.proxied import settings_for
from tests.serving import serve
from tests.test_packaging import DOCKERFILE, image_environment

DEPLOY = ROOT / "config" / "deploy"
PORT = int(image_environment()["TIDEGATE_SERVER__PORT"])
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))
NGINX = (DEPLOY / "nginx.conf").read_text("utf-8")
MANIFESTS = {
    one["kind"]: one
    for name in ("tidegate.yaml", "secret.yaml")
    for one in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text("utf-8"))
}
POD = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def settings_from(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Settings:
    """What the proxy makes of these variables in the image; unknown names are errors there."""
    monkeypatch.chdir(folder)
    for name, value in {**image_environment(), **variables}.items():
        if name.startswith("TIDEGATE_"):
            monkeypatch.setenv(name, value)
    return load_settings().settings


def filled(value: str) -> str:
    """Compose's `${NAME:?...}` with something in its place."""
    given = {"TIDEGATE_UPSTREAM": "https://api.openai.com/v1"}
    return re.sub(r"\$\{(\w+)[^}]*\}", lambda found: given.get(found[1], "filled"), value)


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def test_every_yaml_file_can_be_read() -> None:
    files = [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.yml")]
    assert len(files) == 6
    for file in files:
        assert all(yaml.safe_load_all(file.read_text("utf-8"))), file


def test_compose_starts_three_replicas_whose_settings_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxy = COMPOSE["services"]["proxy"]
    variables = {name: filled(value) for name, value in proxy["environment"].items()}
    settings = settings_from(variables, monkeypatch, tmp_path)
    assert proxy["deploy"]["replicas"] == 3
    assert proxy["read_only"] is True
    assert settings.store.url.get_secret_value() == (
        "postgresql://tidegate:filled@postgres:5432/tidegate"
    )
    longest = settings.server.drain_seconds + settings.server.shutdown_timeout_seconds
    assert seconds(proxy["stop_grace_period"]) > longest


def test_what_compose_mounts_and_refers_to_is_there() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            there = (DEPLOY / source).is_file() if "/" in source else source in COMPOSE["volumes"]
            assert there, volume
        assert set(service.get("depends_on", ())) <= set(services)
    assert (DEPLOY / services["proxy"]["build"] / "Dockerfile").is_file()
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_everyone_asks_the_port_that_the_image_serves() -> None:
    (job,) = PROMETHEUS["scrape_configs"]
    (names,) = job["dns_sd_configs"]
    (port,) = CONTAINER["ports"]
    (service_port,) = MANIFESTS["Service"]["spec"]["ports"]
    annotations = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert names["port"] == PORT
    assert names["names"] == ["proxy"]
    assert f"server proxy:{PORT};" in NGINX
    assert port == {"name": "http", "containerPort": PORT}
    assert service_port["targetPort"] == "http"
    assert annotations["prometheus.io/port"] == str(PORT)


def test_every_path_that_is_asked_answers(tmp_path: Path) -> None:
    (job,) = PROMETHEUS["scrape_configs"]
    annotations = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    probes = [CONTAINER[name]["httpGet"] for name in CONTAINER if name.endswith("Probe")]
    assert len(probes) == 3
    assert {probe["port"] for probe in probes} == {"http"}
    paths = {job["metrics_path"], annotations["prometheus.io/path"], *(p["path"] for p in probes)}
    with serve(create_app(settings_for(tmp_path, "http://127.0.0.1:9", 6000))) as served:
        for path in paths:
            assert httpx.get(served.url + path, trust_env=False).status_code == 200, path


def test_the_pods_settings_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = MANIFESTS["Secret"]
    assert CONTAINER["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
    variables = {one["name"]: one["value"] for one in CONTAINER["env"]}
    settings = settings_from({**secret["stringData"], **variables}, monkeypatch, tmp_path)
    longest = settings.server.drain_seconds + settings.server.shutdown_timeout_seconds
    assert POD["terminationGracePeriodSeconds"] > longest
    assert len(settings.server.client_keys) == 2
    assert settings.store.url.get_secret_value().startswith("postgresql://")


def test_the_pod_is_locked_down_as_the_image_expects() -> None:
    found = re.search(r"^USER (\d+):(\d+)", DOCKERFILE, re.MULTILINE)
    assert found
    context = POD["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(found[1]), int(found[2]))
    assert context["runAsNonRoot"] is True
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    assert CONTAINER["securityContext"]["allowPrivilegeEscalation"] is False
    assert CONTAINER["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert POD["volumes"][0]["name"] == "data"


def test_what_scales_and_what_is_protected_is_the_deployment() -> None:
    deployment = MANIFESTS["Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for kind in ("PodDisruptionBudget", "Deployment"):
        assert MANIFESTS[kind]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["Service"]["spec"]["selector"] == labels
    scaler = MANIFESTS["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaler["minReplicas"] == deployment["spec"]["replicas"] >= 2
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["maxUnavailable"] < scaler["minReplicas"]


def test_nginx_lets_streams_pass_and_waits_longer_than_the_proxy() -> None:
    said = dict(re.findall(r"^ +(\w+) ([^;{]+);$", NGINX, re.MULTILINE))
    for name in ("proxy_buffering", "proxy_request_buffering", "proxy_cache", "gzip"):
        assert said[name] == "off"
    server = ServerSettings()
    waits = max(server.first_byte_timeout_seconds, server.between_bytes_timeout_seconds)
    assert seconds(said["proxy_read_timeout"]) > waits
    assert said["client_max_body_size"] == "0"
    assert said["proxy_http_version"] == "1.1"
    assert said["proxy_next_upstream"] == "error"
    assert NGINX.count("{") == NGINX.count("}")


def _expressions(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["expr"]] if isinstance(value.get("expr"), str) else []
        return own + [text for one in value.values() for text in _expressions(one)]
    if isinstance(value, list):
        return [text for one in value for text in _expressions(one)]
    return []


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "tidegate.json").read_text("utf-8"))
    expressions = _expressions(dashboard)
    assert expressions
    for expression in expressions:
        for name in re.findall(r"\btidegate_\w+", expression):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in TABLE, name


def test_the_dashboards_source_is_the_provisioned_one() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources.yaml").read_text("utf-8"))["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards.yaml").read_text("utf-8"))["providers"]
    assert source["url"] == "http://prometheus:9090"
    mounted = [volume.split(":")[1] for volume in COMPOSE["services"]["grafana"]["volumes"]]
    assert any(os.path.dirname(path) == provider["options"]["path"] for path in mounted)
    dashboard = json.loads((DEPLOY / "grafana" / "tidegate.json").read_text("utf-8"))
    variables = {one["name"] for one in dashboard.get("templating", {}).get("list", ())}
    for panel in dashboard["panels"]:
        uid = panel.get("datasource", {}).get("uid", source["uid"])
        assert uid == source["uid"] or uid.strip("${}") in variables
