"""Values that the Helm chart is rendered with or must refuse, and what its objects are held against.

Shared by the tests that render (`test_chart.py`, which need Helm) and those that only read
(`test_chart_files.py`). Renders nothing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from mambad.server.cli_parser import parse_settings
from mambad.server.config import FLAGS
from mambad.server.config_sources import LoadedConfig, load_config

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/mambad"
EXAMPLES = {path.stem: path for path in sorted((CHART / "examples").glob("*.yaml"))}
GOLDEN = ROOT / "tests/deploy/golden"
SCHEMAS = json.loads((ROOT / "tests/deploy/schemas/chart.json").read_text())
VERSIONS = ("1.29", "1.37")
"""The oldest Kubernetes that the chart admits, and the newest that is known here."""

OPEN = {"apiKey": {"none": True}}
KEYS = {"apiKey": {"existingSecret": "keys"}}
POOL = {"inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}}}
CLOSED = {"networkPolicy": {"enabled": True, "from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}}
SHARED_CLAIM = {"create": True, "accessModes": ["ReadWriteMany"]}
OPTIONAL_OBJECTS = ("pdb", "keda", "serviceMonitor", "prometheusRule", "dashboard", "ingress", "httpRoute")
SWITCHES: dict[str, dict[str, Any]] = {
    "key": KEYS,
    "key as a value": {"apiKey": {"value": "one\ntwo: \"3\""}},
    "admin key": OPEN | {"adminApiKey": {"existingSecret": "keys"}},
    "hub token": OPEN | {"hfToken": {"existingSecret": "hub"}},
    "claim": OPEN | {"storage": {"existingClaim": "models"}},
    "new claim": OPEN | {"storage": {"create": True, "storageClassName": "fast"}},
    "writable claim": OPEN | {"storage": {"existingClaim": "models", "readOnly": False}},
    "digest": OPEN | {"image": {"digest": "sha256:" + "0" * 64}},
    "a claim that is there": OPEN | {"storage": {"create": True, "storageClassName": "-"}},
    "names like numbers": {
        "fullnameOverride": "e12",
        "apiKey": {"existingSecret": "123", "key": "1"},
        "hfToken": {"existingSecret": "1e3"},
        "storage": {"existingClaim": "7"},
    },
    "version's image": OPEN | {"image": {"tag": ""}},
    "six": OPEN | {"host": "::"},
    "less asked for": OPEN | {"resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}}},
    "nulls": OPEN
    | {
        "model": {"dtype": None, "maxModelLen": None},
        "threads": None,
        "terminationGracePeriodSeconds": None,
        "resources": {"limits": {"memory": None}, "requests": None},
        "pdb": {"enabled": True, "minAvailable": None},
        "podLabels": None,
        "strategy": None,
    },
    "no resources": OPEN | {"resources": None},
    "an open protection": OPEN
    | {"podMonitor": {"enabled": True}, "env": [{"name": "MAMBAD_PROTECT_METRICS", "value": "off"}]},
    "pdb": OPEN | {"pdb": {"enabled": True, "minAvailable": 1}},
    "hpa": OPEN | {"hpa": {"enabled": True}},
    "keda": OPEN | {"keda": {"enabled": True}},
    "service monitor": OPEN | {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "pod monitor": OPEN | {"podMonitor": {"enabled": True}},
    "rules": OPEN | {"prometheusRule": {"enabled": True}},
    "dashboard": OPEN | {"dashboard": {"enabled": True}},
    "network policy": OPEN | {"networkPolicy": {"enabled": True}},
    "ingress": OPEN | {"ingress": {"enabled": True, "className": "nginx", "tls": [{"secretName": "tls"}]}},
    "route": OPEN | {"httpRoute": {"enabled": True}},
    "pool": OPEN | POOL,
    "pool on native series": OPEN
    | POOL
    | {"extraArgs": ["--metrics-compat", "none"], "podLabels": {"llm-d.ai/engine-type": "mambad"}},
    "no account": OPEN | {"serviceAccount": {"create": False}},
    "no pre-stop": OPEN | {"drain": {"preStopSeconds": 0}},
    "a longer grace": OPEN | {"terminationGracePeriodSeconds": 600},
    "a long drain": OPEN | {"drain": {"shutdownSeconds": 1_000_000}},
    "threads": OPEN | {"threads": 3, "resources": {}},
    "recreated": OPEN | {"strategy": {"type": "Recreate"}},
    "no pod more": OPEN
    | {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}}},
    "a user of the platform's": OPEN | {"podSecurityContext": {"runAsUser": None, "fsGroup": None}},
    "placement": OPEN
    | {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "runtimeClassName": "other",
        "imagePullSecrets": [{"name": "pull"}],
        "podLabels": {"team": "x"},
        "podAnnotations": {"x": "y"},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
    },
    "extras": OPEN
    | {
        "extraArgs": ["--scheduling-policy", "priority", "-dp", "2"],
        "env": [{"name": "OMP_NUM_THREADS", "value": "2"}, {"name": "MAMBAD_DOCS", "value": "off"}],
        "envFrom": [{"secretRef": {"name": "more"}}],
        "extraVolumes": [{"name": "x", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}],
        "initContainers": [{"name": "wait", "image": "busybox"}],
        "extraObjects": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}
        ],
    },
    "model": OPEN
    | {
        "storage": {"ephemeral": True},
        "model": {
            "name": "owner/name", "servedName": "name", "revision": "main", "dtype": "float32",
            "quantization": "int8", "stateDtype": "bfloat16", "maxModelLen": 1_048_576, "maxNumSeqs": 8,
            "numStateSlots": 9, "kvCacheMemory": 4_294_967_296, "device": "cpu",
        }
    },
    "everything": KEYS
    | POOL
    | CLOSED
    | {
        "storage": SHARED_CLAIM,
        "adminApiKey": {"existingSecret": "keys"},
        **{name: {"enabled": True} for name in OPTIONAL_OBJECTS},
    },
}  # fmt: skip
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no choice of a key": ({}, "choose who may use the server: apiKey.existingSecret"),
    "two choices": ({"apiKey": {"none": True, "existingSecret": "x"}}, "exclude each other"),
    "a secret and a value": ({"apiKey": {"value": "x", "existingSecret": "x"}}, "exclude each other"),
    "too short a grace": (OPEN | {"terminationGracePeriodSeconds": 79}, r"\+ 10 are 80: leave it empty"),
    "no number": (OPEN | {"terminationGracePeriodSeconds": "long"}, "terminationGracePeriodSeconds"),
    "a hub model and no claim": (OPEN | {"model": {"name": "owner/name"}}, "storage.create, or"),
    "a hub model and a claim to read": (
        OPEN | {"model": {"name": "owner/name"}, "storage": {"existingClaim": "models"}},
        "storage.readOnly=false",
    ),
    "a claim of one node for two": (OPEN | {"replicaCount": 2, "storage": {"create": True}}, "ReadWriteMany"),
    "a second pod on a claim of one node": (
        OPEN | {"storage": {"create": True}, "strategy": {"type": "RollingUpdate"}},
        "rollingUpdate.maxSurge=0 or",
    ),
    "two claims": (OPEN | {"storage": {"create": True, "existingClaim": "x"}}, "exclude each other"),
    "a drain of one's own": (OPEN | {"extraArgs": ["--shutdown-timeout=600"]}, "which other values decide"),
    "a drain in the environment": (
        OPEN | {"env": [{"name": "MAMBAD_DRAIN_GRACE", "value": "9"}]},
        "env holds MAMBAD_DRAIN_GRACE, and other values decide about --drain-grace",
    ),
    "a flag of the chart's in the environment": (
        OPEN | {"model": {"dtype": "bfloat16"}, "env": [{"name": "MAMBAD_DTYPE", "value": "float32"}]},
        "env holds MAMBAD_DTYPE, and other values decide about --dtype",
    ),
    "a log format in the environment": (
        OPEN | {"env": [{"name": "MAMBAD_LOG_FORMAT", "value": "text"}]},
        "decide about --log-format",
    ),
    "threads twice": (
        OPEN | {"threads": 3, "env": [{"name": "MAMBAD_THREADS", "value": "4"}]},
        "decide about --threads",
    ),
    "a key for all to see": (OPEN | {"extraArgs": ["--api_key", "x"]}, "which other values decide"),
    "a second model": (OPEN | {"extraArgs": ["--model", "x"]}, "which other values decide"),
    "two tokens": (
        OPEN | {"hfToken": {"existingSecret": "hub"}, "env": [{"name": "HF_TOKEN", "value": "x"}]},
        "keep one",
    ),
    "probes that can't get in": (OPEN | {"extraArgs": ["--ssl-certfile=/x"]}, "end TLS at the ingress"),
    "metrics that nobody may read": (
        OPEN | {"extraArgs": ["--protect-metrics"], "podMonitor": {"enabled": True}},
        "networkPolicy.from instead",
    ),
    "a picker that sees nothing": (OPEN | POOL | {"extraArgs": ["--metrics-compat=none"]}, "set podLabels"),
    "a picker that sees nothing for a variable": (
        OPEN | POOL | {"podLabels": None, "env": [{"name": "MAMBAD_METRICS_COMPAT", "value": "none"}]},
        "set podLabels",
    ),
    "rules that see nothing": (
        OPEN | {"podMonitor": {"enabled": True, "interval": "1m"}, "prometheusRule": {"enabled": True}},
        "every 20s or oftener",
    ),
    "a scrape longer than its interval": (
        OPEN | {"serviceMonitor": {"enabled": True, "interval": "5s"}},
        "scrapeTimeout is 10s and interval 5s",
    ),
    "two monitors": (
        OPEN | {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
        "scraped twice",
    ),
    "two scalers": (OPEN | {"hpa": {"enabled": True}, "keda": {"enabled": True}}, "exclude each other"),
    "less than the least": (OPEN | {"keda": {"enabled": True, "minReplicas": 5}}, "keda.minReplicas is 5"),
    "a scaler to nothing": (OPEN | {"keda": {"enabled": True, "minReplicas": 0}}, "/keda/minReplicas"),
    "no picker": (OPEN | {"inferencePool": {"enabled": True}}, "endpointPicker.name is empty"),
    "no budget": (OPEN | {"pdb": {"enabled": True, "maxUnavailable": ""}}, "pdb.minAvailable or"),
    "no budget but null": (OPEN | {"pdb": {"enabled": True, "maxUnavailable": None}}, "pdb.minAvailable or"),
    "a label of the chart's": (
        OPEN | {"podLabels": {"app.kubernetes.io/name": "x"}},
        "podLabels holds app.kubernetes.io/name",
    ),
    "no name": (OPEN | {"fullnameOverride": "My_Name"}, "/fullnameOverride"),
    "a number in the environment": (OPEN | {"env": [{"name": "X", "value": 5}]}, "/env/0/value"),
    "no drain": (OPEN | {"drain": None}, "'drain'"),
    "no probe": (OPEN | {"probes": {"startup": None}}, "'startup'"),
    "a rolling Recreate": (
        OPEN | {"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}},
        "has no place beside",
    ),
    "unknown value": (OPEN | {"modell": {}}, "'modell' not allowed"),
    "unknown nested value": (OPEN | {"model": {"nam": "x"}}, "'nam' not allowed"),
    "a probe of another path": (OPEN | {"probes": {"startup": {"httpGet": {}}}}, "'httpGet' not allowed"),
    "a misspelt limit": (OPEN | {"resources": {"limit": {"cpu": "1"}}}, "'limit' not allowed"),
    "wrong type": (OPEN | {"replicaCount": "two"}, "/replicaCount"),
    "wrong choice": (OPEN | {"model": {"dtype": "float8"}}, "/model/dtype"),
    "no size": (OPEN | {"model": {"kvCacheMemory": "much"}}, "/model/kvCacheMemory"),
    "no quantity": (OPEN | {"tmpSize": "1GB"}, "/tmpSize"),
}


def values_of(path: Path) -> dict[str, Any]:
    """Return what a values file holds."""
    parsed: dict[str, Any] = yaml.safe_load(path.read_text())
    return parsed


def check(item: dict[str, Any]) -> None:
    """Hold an object against its kind's schema, for both versions of Kubernetes where that has one."""
    if item["kind"] in SCHEMAS["$defs"]:
        jsonschema.validate(item["spec"], {**SCHEMAS, "$ref": f"#/$defs/{item['kind']}"})
        return
    for version in VERSIONS:
        kubernetes_validate.validate(item, version, strict=True)


def container_of(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the server's container."""
    container: dict[str, Any]
    (container,) = pod_of(items)["containers"]
    return container


def pod_of(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the server's pod."""
    (deployment,) = (item for item in items if item["kind"] == "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def settings_of(container: Mapping[str, Any]) -> LoadedConfig:
    """Return what mambad makes of a container's arguments and environment; key files are not read."""
    words = container["args"]
    assert words[0] == "serve"
    arguments, _ = parse_settings("serve", "", FLAGS, words[1:])
    return load_config(arguments, {each["name"]: each.get("value", "x") for each in container.get("env", ())})


def grace_needed(container: Mapping[str, Any]) -> float:
    """Return the seconds that a pod needs to end: the hook, the server's own two waits, and ten."""
    config = settings_of(container).config
    hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    assert hook[0] == "sleep"
    return float(hook[1]) + config.drain_grace + config.shutdown_timeout + 10
