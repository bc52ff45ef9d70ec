"""The manifests for KServe and llm-d: shape, pods, arguments, drain numbers, and series that really exist.

Shapes are checked against schemas written after these projects' sources (`schemas/`), pods against those of
Kubernetes. Nothing here talks to a cluster.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from toy_server import run_server

from mambad.server.cli_parser import parse_settings
from mambad.server.config import FLAGS, ServerConfig
from mambad.server.config_sources import load_config

ROOT = Path(__file__).resolve().parents[2]
KSERVE = {path.name: path for path in sorted((ROOT / "deploy" / "kserve").glob("*.yaml"))}
PICKER, VALUES = (
    ROOT / "deploy" / "llm-d" / name for name in ("epp-config.yaml", "modelservice-values.yaml")
)
VERSIONS = ("1.31", "1.34")
VALUES_ONLY = ("modelCommand", "mountModelVolume")
"""Keys of the chart's containers that are not Kubernetes'."""


def read(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text())
    assert isinstance(document, dict)
    return document


def schema(name: str, definition: str = "") -> dict[str, Any]:
    whole = json.loads((Path(__file__).parent / "schemas" / name).read_text())
    return {**whole, "$ref": f"#/$defs/{definition}"} if definition else whole


def pod_specs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each pod with containers of ours, and where it stands."""
    runtime = read(KSERVE["servingruntime.yaml"])["spec"]
    grace = read(KSERVE["inferenceservice.yaml"])["spec"]["predictor"]["terminationGracePeriodSeconds"]
    yield (
        "servingruntime.yaml",
        {
            "containers": runtime["containers"],
            "volumes": runtime["volumes"],
            "terminationGracePeriodSeconds": grace,
        },
    )
    yield "llminferenceservice.yaml", read(KSERVE["llminferenceservice.yaml"])["spec"]["template"]
    decode = read(VALUES)["decode"]
    (container,) = decode["containers"]
    kept = {key: value for key, value in container.items() if key not in VALUES_ONLY}
    names = ("volumes", "terminationGracePeriodSeconds", "enableServiceLinks")
    yield VALUES.name, {"containers": [kept], **{name: decode[name] for name in names}}


PODS = dict(pod_specs())


def words_of(name: str) -> list[str]:
    """Return what the container runs after `mambad`, as the cluster would complete it."""
    (container,) = PODS[name]["containers"]
    words = [*container.get("command", ["mambad"]), *container["args"]]
    assert words.pop(0) == "mambad"
    if name == VALUES.name:  # the chart's own arguments come first
        artifacts = read(VALUES)["modelArtifacts"]
        path = artifacts["uri"].removeprefix("pvc://").partition("/")[2]
        port = str(read(VALUES)["routing"]["servicePort"])
        own = ["--model", f"{artifacts['mountPath']}/{path}", "--port", port]
        words = [*own, "--served-model-name", artifacts["name"], *words]
    if name == "servingruntime.yaml":  # the service's arguments are added
        words += read(KSERVE["inferenceservice.yaml"])["spec"]["predictor"]["model"]["args"]
    filled = [re.sub(r"\{\{.*\}\}", "granite-h", word) for word in words]
    return filled[1:] if filled[0] == "serve" else filled


def config_of(name: str) -> ServerConfig:
    arguments, _ = parse_settings("serve", "", FLAGS, words_of(name))
    (container,) = PODS[name]["containers"]
    environment = {each["name"]: each.get("value", "secret") for each in container.get("env", [])}
    loaded = load_config(arguments, {"MAMBAD_HOST": "0.0.0.0", **environment})
    assert loaded.warnings == ()
    return loaded.config


@pytest.mark.parametrize("name", KSERVE)
def test_kserve_has_these_fields(name: str) -> None:
    jsonschema.validate(read(KSERVE[name]), schema("kserve.json"))


def test_the_chart_and_the_picker_have_these_fields() -> None:
    jsonschema.validate(read(VALUES), schema("llm-d.json", "ModelServiceValues"))
    jsonschema.validate(read(PICKER), schema("llm-d.json", "EndpointPickerConfig"))


def test_a_field_that_nobody_knows_is_found() -> None:
    service = read(KSERVE["inferenceservice.yaml"])
    service["spec"]["predictor"]["maxReplica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maxReplica"):
        jsonschema.validate(service, schema("kserve.json"))
    values = read(VALUES)
    values["decode"]["replica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(values, schema("llm-d.json", "ModelServiceValues"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PODS)
def test_pods_are_pods(name: str, version: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": PODS[name]}
    kubernetes_validate.validate(pod, version, strict=True)
    broken = json.loads(json.dumps(pod))
    broken["spec"]["containers"][0]["readinessProbe"]["periodSecond"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_mambad_takes_these_arguments_and_the_drain_numbers_add_up(name: str) -> None:
    config = config_of(name)
    (container,) = PODS[name]["containers"]
    assert config.host == "0.0.0.0"
    assert config.api_key == ("secret",), "a server that other machines reach asks for a key"
    assert config.served_model_name
    assert [port["containerPort"] for port in container.get("ports", [])] in ([], [config.port])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        http = container[probe]["httpGet"]
        assert http["path"] == ("/live" if probe == "livenessProbe" else "/ready")
        assert http["port"] in (config.port, "http")
    ready = container["readinessProbe"]
    seen_s = ready["periodSeconds"] * ready["failureThreshold"] + ready["timeoutSeconds"]
    assert seen_s < config.drain_grace, "requests still come when the server refuses them"
    assert config.drain_grace + config.shutdown_timeout + 10 <= PODS[name]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", PODS)
def test_containers_are_hardened(name: str) -> None:
    (container,) = PODS[name]["containers"]
    security = container["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert {"name": "tmp", "emptyDir": {}} in PODS[name]["volumes"]
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


def test_every_plugin_of_the_picker_is_there_and_used_once() -> None:
    config = read(PICKER)
    names = [plugin.get("name", plugin["type"]) for plugin in config["plugins"]]
    assert len(set(names)) == len(names)
    (source,), (profile,) = config["dataLayer"]["sources"], config["schedulingProfiles"]
    references = [source, *source["extractors"], *profile["plugins"]]
    used = {reference["pluginRef"] for reference in references}
    handlers = {plugin["name"] for plugin in config["plugins"] if plugin["type"] == "single-profile-handler"}
    assert used | handlers == set(names)


def test_every_series_that_they_name_exists() -> None:
    (extractor,) = [each for each in read(PICKER)["plugins"] if each["type"] == "core-metrics-extractor"]
    specs = [
        value
        for engine in extractor["parameters"]["engineConfigs"]
        for key, value in engine.items()
        if key.endswith("Spec")
    ]
    predictor = read(KSERVE["inferenceservice.yaml"])["spec"]["predictor"]
    queries = [metric["external"]["metric"]["query"] for metric in predictor["autoScaling"]["metrics"]]
    named = {word for text in (*specs, *queries) for word in re.findall(r"\bmambad_\w+", text)}
    assert len(named) == 3
    with run_server(served_model_names=("granite-h",)) as server, server.client() as client:
        native = client.get("/metrics?compat=none").text
        everything = client.get("/metrics").text
    for name in named:
        assert re.search(rf'^{name}{{.*model_name="granite-h".*}} ', native, re.MULTILINE), name
    assert len(re.findall('model_name="granite-h"', "".join(queries))) == 2
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        assert re.search(rf"^vllm:{name}{{", everything, re.MULTILINE), f"the built-in engine reads {name}"
