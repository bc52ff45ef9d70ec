"""The Helm chart, rendered by Helm: lint, every example, every switch, two versions of Kubernetes, goldens.

`make chart` runs this; `make chart GOLDEN=write` writes the goldens anew. No cluster is asked.
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from toy_server import run_server

from mambad.server.cli_parser import parse_settings
from mambad.server.config import FLAGS
from mambad.server.config_sources import load_config

helm_python = pytest.importorskip("helm_python", reason="the chart is not rendered: `make chart` has Helm")

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/mambad"
EXAMPLES = {path.stem: path for path in sorted((CHART / "examples").glob("*.yaml"))}
GOLDEN = Path(__file__).with_name("golden")
SCHEMAS = json.loads((Path(__file__).parent / "schemas/chart.json").read_text())
VERSIONS = ("1.31", "1.34")
OPEN = {"apiKey": {"none": True}}
KEYS = {"apiKey": {"existingSecret": "keys"}}
SWITCHES: dict[str, dict[str, Any]] = {
    "key": KEYS,
    "admin key": OPEN | {"adminApiKey": {"existingSecret": "keys"}},
    "hub token": OPEN | {"hfToken": {"existingSecret": "hub"}},
    "claim": OPEN | {"storage": {"existingClaim": "models"}},
    "new claim": OPEN | {"storage": {"create": True, "storageClassName": "fast"}},
    "writable claim": OPEN | {"storage": {"existingClaim": "models", "readOnly": False}},
    "digest": OPEN | {"image": {"digest": "sha256:" + "0" * 64}},
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
    "pool": OPEN | {"inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}}},
    "no account": OPEN | {"serviceAccount": {"create": False}},
    "no pre-stop": OPEN | {"drain": {"preStopSeconds": 0}},
    "threads": OPEN | {"threads": 3, "resources": {}},
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
    },
    "extras": OPEN
    | {
        "extraArgs": ["--scheduling-policy", "priority"],
        "env": [{"name": "OMP_NUM_THREADS", "value": "2"}],
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
            "quantization": "int8", "stateDtype": "bfloat16", "maxModelLen": 4096, "maxNumSeqs": 8,
            "numStateSlots": 9, "kvCacheMemory": "1GiB", "device": "cpu",
        }
    },
}  # fmt: skip
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no choice of a key": ({}, "choose who may use the server"),
    "two choices": ({"apiKey": {"none": True, "existingSecret": "x"}}, "exclude each other"),
    "too short a grace": (OPEN | {"terminationGracePeriodSeconds": 30}, r"\+ 10 are 80"),
    "a hub model and no claim": (OPEN | {"model": {"name": "owner/name"}}, "storage.create or"),
    "a claim of one node for two": (OPEN | {"replicaCount": 2, "storage": {"create": True}}, "ReadWriteMany"),
    "a drain of one's own": (OPEN | {"extraArgs": ["--shutdown-timeout=600"]}, "which other values decide"),
    "a key for all to see": (OPEN | {"extraArgs": ["--api-key", "x"]}, "which other values decide"),
    "two monitors": (
        OPEN | {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
        "scraped twice",
    ),
    "two scalers": (OPEN | {"hpa": {"enabled": True}, "keda": {"enabled": True}}, "exclude each other"),
    "two claims": (OPEN | {"storage": {"create": True, "existingClaim": "x"}}, "exclude each other"),
    "no picker": (OPEN | {"inferencePool": {"enabled": True}}, "endpointPicker.name is empty"),
    "unknown value": (OPEN | {"modell": {}}, "modell"),
    "unknown nested value": (OPEN | {"model": {"nam": "x"}}, "nam"),
    "wrong type": (OPEN | {"replicaCount": "two"}, "replicaCount|replica"),
    "wrong choice": (OPEN | {"model": {"dtype": "float8"}}, "dtype"),
}


def values_of(path: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(path.read_text())
    return parsed


def render(values: dict[str, Any]) -> dict[str, str]:
    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(chart.merge_values(values))
        return dict(chart.render(values, name="demo", namespace="models"))


def objects(values: dict[str, Any]) -> list[dict[str, Any]]:
    files = sorted(render(values).items())
    texts = [text for name, text in files if name.endswith(".yaml")]
    return [item for text in texts for item in yaml.safe_load_all(text) if item]


def pod(values: dict[str, Any]) -> dict[str, Any]:
    (deployment,) = (item for item in objects(values) if item["kind"] == "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def check(item: dict[str, Any]) -> None:
    if item["kind"] in SCHEMAS["$defs"]:
        jsonschema.validate(item["spec"], {**SCHEMAS, "$ref": f"#/$defs/{item['kind']}"})
        return
    for version in VERSIONS:
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_lint_finds_nothing(name: str) -> None:
    report = helm_python.lint(str(CHART), values_of(EXAMPLES[name]), strict=True)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_valid_and_is_what_it_was(name: str) -> None:
    rendered = render(values_of(EXAMPLES[name]))
    for item in objects(values_of(EXAMPLES[name])):
        check(item)
    text = "".join(f"# {file}\n{body.rstrip()}\n" for file, body in sorted(rendered.items()) if body.strip())
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(text)
    assert golden.read_text() == text, "make chart GOLDEN=write, and look at the difference"


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_renders_valid_objects_that_differ_from_the_default(name: str) -> None:
    rendered = objects(SWITCHES[name])
    for item in rendered:
        check(item)
    assert rendered != objects(OPEN)


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_refused_with_a_reason(name: str) -> None:
    values, reason = BAD[name]
    with pytest.raises(helm_python.HelmError, match=reason):
        render(values)


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    def names(value: object) -> set[str]:
        if not isinstance(value, dict):
            return set()
        return set(value) | {f"{key}.{name}" for key in value for name in names(value[key])}

    def described(schema: dict[str, Any]) -> set[str]:
        known = schema.get("properties", {})
        return set(known) | {f"{key}.{name}" for key in known for name in described(known[key])}

    schema = json.loads((CHART / "values.schema.json").read_text())
    free = names(values_of(CHART / "values.yaml")) - described(schema)
    parents = {key.rpartition(".")[0] for key in free}
    assert described(schema) - names(values_of(CHART / "values.yaml")) == {"global"}
    assert {parent.rpartition(".")[2] for parent in parents} <= {
        "resources", "limits", "requests", "labels", "podSecurityContext", "securityContext", "strategy",
        "rollingUpdate", "seccompProfile", "capabilities", "startup", "liveness", "readiness", "probes",
    }  # fmt: skip


@pytest.mark.parametrize("name", SWITCHES)
def test_mambad_takes_the_arguments_and_the_environment(name: str) -> None:
    (container,) = pod(SWITCHES[name])["containers"]
    assert container["args"][0] == "serve"
    arguments, _ = parse_settings("serve", "", FLAGS, container["args"][1:])
    loaded = load_config(arguments, {each["name"]: each.get("value", "2") for each in container["env"] or ()})
    assert loaded.warnings == ()
    assert (loaded.config.host, loaded.config.port) == ("0.0.0.0", 8000)


@pytest.mark.parametrize("values", [OPEN, SWITCHES["no pre-stop"], values_of(EXAMPLES["ha"])])
def test_the_numbers_of_the_drain_add_up(values: dict[str, Any]) -> None:
    spec = pod(values)
    (container,) = spec["containers"]
    flags = dict(word.removeprefix("--").split("=") for word in container["args"] if "=" in word)
    wait = int(container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", 0])[1])
    drain = float(flags["drain-grace"]) + float(flags["shutdown-timeout"])
    assert spec["terminationGracePeriodSeconds"] == wait + drain + 10


def test_the_probes_ask_what_the_health_table_says() -> None:
    (container,) = pod(OPEN)["containers"]
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/ready", "liveness": "/live", "readiness": "/ready"}
    with run_server() as server, server.client() as client:
        assert all(client.get(path).status_code == 200 for path in set(paths.values()))


def test_pods_are_hardened_by_default() -> None:
    pods = [pod(OPEN), *(item["spec"] for item in objects(OPEN) if item["kind"] == "Pod")]
    assert len(pods) == 2
    for spec in pods:
        (container,) = spec["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_keys_come_as_files_and_never_as_arguments_or_variables() -> None:
    spec = pod(KEYS | {"adminApiKey": {"existingSecret": "admin"}})
    (container,) = spec["containers"]
    assert "--api-key-file=/etc/mambad/api-key/keys" in container["args"]
    assert "--admin-api-key-file=/etc/mambad/admin-api-key/keys" in container["args"]
    assert all("KEY" not in variable["name"] for variable in container["env"])


def test_threads_follow_the_limit_of_processors() -> None:
    (container,) = pod(OPEN)["containers"]
    (variable,) = container["env"]
    assert variable["name"] == "MAMBAD_THREADS"
    assert variable["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"
    (container,) = pod(OPEN | {"resources": {"limits": {"cpu": None}}})["containers"]
    assert container["env"] is None


def test_series_that_scalers_ask_for_exist() -> None:
    with run_server() as server, server.client() as client:
        page = client.get("/metrics").text
    (scaled,) = (item for item in objects(SWITCHES["keda"]) if item["kind"] == "ScaledObject")
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    names = [query.partition("(")[2].partition("{")[0] for query in queries]
    names.append(values_of(CHART / "values.yaml")["hpa"]["metric"])
    assert len(names) == 3
    for name in names:
        assert f"\n{name}{{" in page


def test_the_test_hook_asks_a_real_server(monkeypatch: pytest.MonkeyPatch) -> None:
    (hook,) = (item for item in objects(OPEN) if item["kind"] == "Pod")
    (script,) = hook["spec"]["containers"][0]["args"]
    with run_server() as server:
        monkeypatch.setenv("URL", server.url)
        exec(compile(script, "check.py", "exec"), {})


def test_a_network_policy_lets_the_test_in_and_the_picker_of_a_pool() -> None:
    closed = {"networkPolicy": {"enabled": True, "from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}}
    (test,) = (item for item in objects(OPEN) if item["kind"] == "Pod")

    def admitted(values: dict[str, Any]) -> list[dict[str, Any]]:
        (policy,) = (item for item in objects(values) if item["kind"] == "NetworkPolicy")
        return [each["podSelector"] for each in policy["spec"]["ingress"][0]["from"]]

    labels = admitted(OPEN | closed)[1]["matchLabels"]
    assert labels.items() <= test["metadata"]["labels"].items()
    assert admitted(SWITCHES["pool"] | closed)[1] == {}


def test_a_claim_that_can_be_written_is_downloaded_into() -> None:
    flag = "--download-dir=/models"
    args = {
        name: pod(SWITCHES[name])["containers"][0]["args"]
        for name in ("claim", "writable claim", "new claim")
    }
    assert {name: flag in words for name, words in args.items()} == {
        "claim": False,
        "writable claim": True,
        "new claim": True,
    }
