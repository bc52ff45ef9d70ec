"""The Helm chart, rendered by Helm: lint, examples, switches, refusals, goldens. No cluster is asked.

`make chart` runs this; `make chart GOLDEN=write` writes the goldens anew. What can be seen without Helm is in
`test_chart_files.py`, which `make test` runs too.
"""

import functools
import json
import os
import re
import time
from typing import Any

import chart_cases
import pytest
import yaml
from chart_cases import BAD, CHART, CLOSED, EXAMPLES, GOLDEN, KEYS, OPEN, SWITCHES, values_of
from toy_server import FakeEngine, run_server

from mambad.engine.async_engine import EngineStatus

helm_python = pytest.importorskip("helm_python", reason="the chart is not rendered: `make chart` has Helm")

CASES = SWITCHES | {f"example {name}": values_of(path) for name, path in EXAMPLES.items()}
POOL_OF_ALL = CLOSED | SWITCHES["pool"]


def render(values: dict[str, Any], name: str = "demo") -> dict[str, str]:
    return dict(_render(json.dumps(values), name))


@functools.cache
def _render(values: str, name: str) -> dict[str, str]:
    with helm_python.Chart.load(str(CHART)) as chart:
        parsed = json.loads(values)
        chart.validate_schema(chart.merge_values(parsed))
        return dict(chart.render(parsed, name=name, namespace="models"))


def objects(values: dict[str, Any], name: str = "demo") -> list[dict[str, Any]]:
    files = sorted(render(values, name).items())
    texts = [text for file, text in files if file.endswith(".yaml")]
    return [item for text in texts for item in yaml.safe_load_all(text) if item]


def one(values: dict[str, Any], kind: str, name: str = "demo") -> dict[str, Any]:
    (found,) = (item for item in objects(values, name) if item["kind"] == kind)
    return found


def container(values: dict[str, Any]) -> dict[str, Any]:
    return chart_cases.container_of(objects(values))


@pytest.mark.parametrize("name", EXAMPLES)
def test_lint_finds_nothing(name: str) -> None:
    report = helm_python.lint(str(CHART), values_of(EXAMPLES[name]), strict=True)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_what_it_was(name: str) -> None:
    rendered = sorted(render(values_of(EXAMPLES[name])).items())
    text = "".join(f"# {file}\n{body.rstrip()}\n" for file, body in rendered if body.strip())
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(text)
    assert golden.read_text() == text, "make chart GOLDEN=write, and look at the difference"


@pytest.mark.parametrize("name", CASES)
def test_every_example_and_switch_renders_valid_objects(name: str) -> None:
    rendered = objects(CASES[name])
    for item in rendered:
        chart_cases.check(item)
        assert item["metadata"].get("namespace", "models") == "models"
    names = [(item["kind"], item["metadata"]["name"]) for item in rendered]
    assert len(set(names)) == len(names)
    assert rendered != objects(OPEN)


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_refused_with_a_reason(name: str) -> None:
    values, reason = BAD[name]
    with pytest.raises(helm_python.HelmError, match=reason):
        render(values)


@pytest.mark.parametrize("name", CASES)
def test_mambad_takes_the_arguments_and_the_environment(name: str) -> None:
    loaded = chart_cases.settings_of(container(CASES[name]))
    assert loaded.warnings == ()
    assert (loaded.config.host, loaded.config.port) == (CASES[name].get("host", "0.0.0.0"), 8000)


@pytest.mark.parametrize("name", CASES)
def test_no_variable_is_given_twice(name: str) -> None:
    names = [variable["name"] for variable in container(CASES[name]).get("env", ())]
    assert len(set(names)) == len(names)


def test_large_numbers_stay_numbers() -> None:
    config = chart_cases.settings_of(container(SWITCHES["model"])).config
    assert (config.max_model_len, config.kv_cache_memory_bytes) == (1_048_576, 4_294_967_296)


@pytest.mark.parametrize("name", CASES)
def test_a_pod_has_the_time_that_its_drain_needs(name: str) -> None:
    given = chart_cases.pod_of(objects(CASES[name]))["terminationGracePeriodSeconds"]
    needed = chart_cases.grace_needed(container(CASES[name]))
    assert given == max(needed, CASES[name].get("terminationGracePeriodSeconds") or 0)


@pytest.mark.parametrize("phase", ["loading", "ready", "draining", "dead"])
def test_the_probes_do_what_the_health_table_says(phase: str) -> None:
    """Traffic and the end of start-up only when ready; a restart only when dead."""
    paths = {
        name: container(OPEN)[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }
    engine = FakeEngine()
    engine.status = EngineStatus(phase, "weights", time.time())
    with run_server(engine) as server, server.client() as client:
        passes = {name: client.get(path).status_code == 200 for name, path in paths.items()}
    is_ready = phase == "ready"
    assert passes == {"startup": is_ready, "readiness": is_ready, "liveness": phase != "dead"}


@pytest.mark.parametrize("values", [OPEN, values_of(EXAMPLES["ha"])], ids=["default", "ha"])
def test_a_draining_pod_takes_requests_until_its_probe_has_failed(values: dict[str, Any]) -> None:
    probe = container(values)["readinessProbe"]
    seen_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    config = chart_cases.settings_of(container(values)).config
    hook_s = chart_cases.grace_needed(container(values)) - config.drain_grace - config.shutdown_timeout - 10
    assert seen_s < hook_s + config.drain_grace


def test_pods_are_hardened_by_default() -> None:
    pods = [chart_cases.pod_of(objects(OPEN)), one(OPEN, "Pod")["spec"]]
    for spec in pods:
        (each,) = spec["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert one(OPEN, "ServiceAccount")["automountServiceAccountToken"] is False
    assert {"name": "tmp", "mountPath": "/tmp"} in container(OPEN)["volumeMounts"]


@pytest.mark.parametrize("keys", [KEYS, {"apiKey": {"value": "one\ntwo"}}], ids=["secret", "value"])
def test_keys_come_as_files_and_never_as_arguments_or_variables(keys: dict[str, Any]) -> None:
    values = keys | {"adminApiKey": {"existingSecret": "admin"}}
    each, volumes = container(values), chart_cases.pod_of(objects(values))["volumes"]
    assert "--api-key-file=/etc/mambad/api-key/keys" in each["args"]
    assert "--admin-api-key-file=/etc/mambad/admin-api-key/keys" in each["args"]
    assert all("KEY" not in variable["name"] for variable in each["env"])
    (secret,) = (volume["secret"] for volume in volumes if volume["name"] == "api-key")
    (item,) = secret["items"]
    (variable,) = (each for each in one(values, "Pod")["spec"]["containers"][0]["env"] if "valueFrom" in each)
    assert variable["valueFrom"]["secretKeyRef"] == {"name": secret["secretName"], "key": item["key"]}
    if "value" in keys["apiKey"]:
        made = one(values, "Secret")
        assert made["metadata"]["name"] == secret["secretName"]
        assert made["stringData"] == {item["key"]: "one\ntwo"}


@pytest.mark.parametrize(
    ("limit", "threads"),
    [("2", "2"), (4, "4"), (2.5, "2"), ("3500m", "3"), ("500m", "1"), ("64", "16"), (None, None)],
)
def test_threads_follow_the_limit_of_processors(limit: object, threads: str | None) -> None:
    env = container(OPEN | {"resources": {"limits": {"cpu": limit}}}).get("env", [])
    assert env == ([{"name": "OMP_NUM_THREADS", "value": threads}] if threads else [])


def test_a_pod_asks_for_what_it_may_use() -> None:
    def resources(values: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = container(OPEN | {"resources": values})["resources"]
        return found

    both = {"cpu": "2", "memory": "4Gi"}
    assert resources({}) == {"limits": both, "requests": both}
    assert resources({"limits": {"cpu": 1}})["requests"] == {"cpu": 1, "memory": "4Gi"}
    assert resources({"requests": {"cpu": "1"}})["requests"] == {"cpu": "1", "memory": "4Gi"}
    assert resources({"limits": {"nvidia.com/gpu": 1}})["requests"] == both


def test_an_update_may_take_as_long_as_loading_and_draining_do() -> None:
    spec = one(OPEN, "Deployment")["spec"]
    assert (
        spec["progressDeadlineSeconds"] > 240 * 5 + spec["template"]["spec"]["terminationGracePeriodSeconds"]
    )


def test_a_claim_to_read_is_attached_to_read() -> None:
    def claim(values: dict[str, Any]) -> dict[str, Any]:
        volumes = chart_cases.pod_of(objects(values))["volumes"]
        (found,) = (each["persistentVolumeClaim"] for each in volumes if each["name"] == "models")
        return dict(found)

    assert claim(SWITCHES["claim"]) == {"claimName": "models", "readOnly": True}
    assert claim(SWITCHES["writable claim"]) == {"claimName": "models", "readOnly": False}
    assert claim(SWITCHES["new claim"]) == {"claimName": "demo-mambad", "readOnly": False}


def test_an_empty_storage_class_and_none_are_two_things() -> None:
    assert one(SWITCHES["a claim that is there"], "PersistentVolumeClaim")["spec"]["storageClassName"] == ""
    assert (
        "storageClassName" not in one(OPEN | {"storage": {"create": True}}, "PersistentVolumeClaim")["spec"]
    )


@pytest.mark.parametrize("release", ["123", "gpt.v1"])
def test_a_release_whose_name_no_service_can_have_is_told_so(release: str) -> None:
    with pytest.raises(helm_python.HelmError, match="set fullnameOverride"):
        render(OPEN, release)
    named = one(OPEN | {"fullnameOverride": "gpt"}, "Deployment", release)
    assert named["metadata"]["labels"]["app.kubernetes.io/instance"] == release


def test_nulls_mean_what_empty_values_mean() -> None:
    nulls, plain = container(SWITCHES["nulls"]), container(OPEN)
    assert nulls["args"] == plain["args"]
    assert nulls["env"] == plain["env"]


def test_rules_are_the_original_ones_but_for_a_drain_that_kubernetes_ends() -> None:
    original = yaml.safe_load((CHART / "files/mambad-rules.yaml").read_text())["groups"]
    for group in original:
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert") != "MambadDrainStuck"]
    assert one(SWITCHES["rules"], "PrometheusRule")["spec"]["groups"] == original


def test_threads_that_are_named_win() -> None:
    (variable,) = container(OPEN | {"threads": 3})["env"]
    assert variable == {"name": "MAMBAD_THREADS", "value": "3"}


def test_series_that_scalers_ask_for_exist() -> None:
    with run_server() as server, server.client() as client:
        page = client.get("/metrics").text
    triggers = one(SWITCHES["keda"], "ScaledObject")["spec"]["triggers"]
    queries = [trigger["metadata"]["query"] for trigger in triggers]
    names = [query.partition("(")[2].partition("{")[0] for query in queries]
    (metric,) = one(SWITCHES["hpa"], "HorizontalPodAutoscaler")["spec"]["metrics"]
    names.append(metric["pods"]["metric"]["name"])
    assert len(names) == 3
    for name in names:
        assert f"\n{name}{{" in page


@pytest.mark.parametrize(
    ("release", "override"), [("mambad", ""), ("a" * 53, ""), ("mambad" + "c" * 47, ""), ("x", "b" * 60)]
)
def test_a_scaler_counts_its_own_pods_and_no_other_release_s(release: str, override: str) -> None:
    values = SWITCHES["keda"] | {"fullnameOverride": override}
    name = one(values, "Deployment", release)["metadata"]["name"]
    triggers = one(values, "ScaledObject", release)["spec"]["triggers"]
    own, other = f"{name}-7d9f8c6b5d-x2k4p", f"{name}-large-7d9f8c6b5d-x2k4p"
    assert len(own) <= 63
    for trigger in triggers:
        (pattern,) = re.findall(r'pod=~"(.*?)"', trigger["metadata"]["query"])
        assert re.fullmatch(pattern, own)
        assert not re.fullmatch(pattern, other)


def test_a_claim_for_one_node_is_handed_on_before_the_next_pod_comes() -> None:
    def strategy(values: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = one(values, "Deployment")["spec"]["strategy"]
        return found

    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert strategy(SWITCHES["new claim"]) == {"type": "Recreate"}
    assert strategy(OPEN | {"storage": chart_cases.SHARED_CLAIM}) == rolling
    assert strategy(SWITCHES["claim"]) == rolling
    assert strategy(SWITCHES["recreated"]) == {"type": "Recreate"}


def test_the_test_hook_asks_a_real_server(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = one(OPEN, "Pod")
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (script,) = hook["spec"]["containers"][0]["args"]
    with run_server(api_keys=("secret",)) as server:
        monkeypatch.setenv("URL", server.url)
        monkeypatch.setenv("API_KEYS", "secret\nother\n")
        exec(compile(script, "check.py", "exec"), {})


def test_the_service_selects_the_server_and_not_the_test() -> None:
    selector = one(OPEN, "Service")["spec"]["selector"].items()
    assert selector <= one(OPEN, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert not selector <= one(OPEN, "Pod")["metadata"]["labels"].items()
    assert selector == one(SWITCHES["pool"], "InferencePool")["spec"]["selector"]["matchLabels"].items()


def test_a_network_policy_lets_the_test_in_and_the_picker_of_a_pool() -> None:
    def admitted(values: dict[str, Any]) -> list[dict[str, Any]]:
        policy = one(values, "NetworkPolicy")
        return [each["podSelector"] for each in policy["spec"]["ingress"][0]["from"]]

    labels = admitted(OPEN | CLOSED)[1]["matchLabels"]
    assert labels.items() <= one(OPEN, "Pod")["metadata"]["labels"].items()
    assert admitted(POOL_OF_ALL)[1] == {}


def test_a_route_leads_to_the_pool_where_there_is_one() -> None:
    def backend(values: dict[str, Any]) -> dict[str, Any]:
        (rule,) = one(values, "HTTPRoute")["spec"]["rules"]
        (found,) = rule["backendRefs"]
        return dict(found)

    assert backend(SWITCHES["everything"])["kind"] == "InferencePool"
    assert backend(SWITCHES["route"]) == {"name": "demo-mambad", "port": 80}


def test_a_claim_that_can_be_written_is_downloaded_into() -> None:
    flag = "--download-dir=/models"
    names = ("claim", "writable claim", "new claim")
    assert [flag in container(SWITCHES[name])["args"] for name in names] == [False, True, True]


def test_notes_say_what_is_open_and_how_to_ask() -> None:
    def notes(values: dict[str, Any]) -> str:
        return render(values)["mambad/templates/NOTES.txt"]

    assert "There is no key" in notes(OPEN)
    assert "Authorization" not in notes(OPEN)
    assert "Authorization: Bearer $KEY" in notes(KEYS)
    assert "kept in the values" in notes(SWITCHES["key as a value"])
    assert "two" not in notes(SWITCHES["key as a value"])
    hub = OPEN | {"model": {"name": "owner/name"}, "storage": {"create": True}}
    assert "can't be fetched" in notes(hub | SWITCHES["network policy"])
    assert "can't be fetched" not in notes(SWITCHES["network policy"])
