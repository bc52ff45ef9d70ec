"""The chart's files, read without Helm: values and their schema, examples, goldens, versions, README.

The goldens are what Helm rendered last (`test_chart.py`), so a flag that goes, or a Kubernetes that no longer
knows a field, is seen here too.
"""

import importlib.util
import json
import re
import tomllib
from typing import Any

import chart_cases
import jsonschema
import pytest
import yaml
from chart_cases import BAD, CHART, EXAMPLES, GOLDEN, ROOT, SWITCHES, values_of

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
FREE = {
    "resources", "limits", "requests", "labels", "podSecurityContext", "securityContext", "seccompProfile",
    "capabilities",
}  # fmt: skip
"""Parents whose children are Kubernetes' own, or the user's."""
OPTIONAL = {
    "", "resources", "strategy", "strategy.rollingUpdate",
    "probes.startup", "probes.liveness", "probes.readiness",
}  # fmt: skip
"""Parents that may have children which values.yaml does not name."""


def golden(name: str) -> list[dict[str, Any]]:
    parts = re.split(r"^# mambad/templates/(.+)$", (GOLDEN / f"{name}.yaml").read_text(), flags=re.MULTILINE)
    files = dict(zip(parts[1::2], parts[2::2], strict=True))
    texts = [text for file, text in files.items() if file.endswith(".yaml")]
    return [item for text in texts for item in yaml.safe_load_all(text) if item]


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return values as Helm merges them: maps are merged, a null takes away, all else is replaced."""
    result = dict(values)
    for key, change in changes.items():
        if change is None:
            result.pop(key, None)
        elif isinstance(change, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], change)
        else:
            result[key] = change
    return result


def names(value: object) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value) | {f"{key}.{name}" for key in value for name in names(value[key])}


def described(schema: dict[str, Any]) -> set[str]:
    known = schema.get("properties", {})
    return set(known) | {f"{key}.{name}" for key in known for name in described(known[key])}


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    values, known = names(values_of(CHART / "values.yaml")), described(SCHEMA)
    assert {name.split(".")[-2] for name in values - known} <= FREE
    parents = {name.rpartition(".")[0] for name in known - values}
    assert parents <= OPTIONAL
    assert {name for name in known - values if "." not in name} == {"global"}


def test_no_part_of_the_schema_lets_an_unknown_key_pass() -> None:
    def parts(schema: dict[str, Any]) -> list[dict[str, Any]]:
        children = schema.get("properties", {}).values()
        return [schema, *(part for child in children for part in parts(child))]

    for part in parts(SCHEMA):
        if "properties" in part:
            assert part["additionalProperties"] is False


@pytest.mark.parametrize("name", [*EXAMPLES, *SWITCHES])
def test_examples_and_switches_fit_the_schema(name: str) -> None:
    values = values_of(EXAMPLES[name]) if name in EXAMPLES else SWITCHES[name]
    jsonschema.Draft7Validator(SCHEMA).validate(merged(values_of(CHART / "values.yaml"), values))


def test_the_schema_refuses_what_it_is_there_for() -> None:
    refused = [name for name, (_, reason) in BAD.items() if reason.startswith(("/", "'"))]
    assert len(refused) > 5
    for name in refused:
        values = merged(values_of(CHART / "values.yaml"), BAD[name][0])
        assert not jsonschema.Draft7Validator(SCHEMA).is_valid(values), name


@pytest.mark.parametrize("name", EXAMPLES)
def test_goldens_are_valid_objects(name: str) -> None:
    items = golden(name)
    assert len(items) > 3
    for item in items:
        chart_cases.check(item)


@pytest.mark.parametrize("name", EXAMPLES)
def test_mambad_takes_the_arguments_of_the_goldens_and_their_drain_adds_up(name: str) -> None:
    items = golden(name)
    container = chart_cases.container_of(items)
    assert chart_cases.settings_of(container).warnings == ()
    grace = chart_cases.pod_of(items)["terminationGracePeriodSeconds"]
    assert grace == chart_cases.grace_needed(container)


def test_a_field_that_no_kubernetes_knows_is_found() -> None:
    (service,) = (item for item in golden("ha") if item["kind"] == "Service")
    with pytest.raises(chart_cases.kubernetes_validate.ValidationError):
        chart_cases.check(service | {"spec": service["spec"] | {"portz": []}})
    (pool,) = (item for item in golden("ha") if item["kind"] == "InferencePool")
    with pytest.raises(jsonschema.ValidationError, match="targetPort"):
        chart_cases.check(pool | {"spec": pool["spec"] | {"targetPort": 8000}})


def test_chart_and_server_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = values_of(CHART / "Chart.yaml")
    assert chart["appVersion"] == project["version"]
    assert chart["kubeVersion"].startswith(f">={chart_cases.VERSIONS[0]}.0")


def test_the_readme_is_what_its_script_makes_of_the_values() -> None:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "deploy/helm/readme.py")
    assert spec is not None
    assert spec.loader is not None
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    page = (CHART / "README.md").read_text()
    assert readme.readme() == page, "python deploy/helm/readme.py > deploy/helm/mambad/README.md"
    for link in re.findall(r"\]\((.+?)\)", page):
        assert (CHART / link).exists(), link
    values, listed = values_of(CHART / "values.yaml"), {}
    for path, text, _ in readme.rows((CHART / "values.yaml").read_text()):
        found: Any = values
        for key in path.split("."):
            found = found[key]
        assert not text or yaml.safe_load(text) == found, path
        listed[path] = text
    for path in names(values):
        assert any(path == each or path.startswith(f"{each}.") for each in listed) or any(
            each.startswith(f"{path}.") for each in listed
        ), path
