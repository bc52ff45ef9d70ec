"""Rules, dashboard and compose file: what Prometheus's tools say of them, and that they fit the server.

`make monitoring` shows the same with a Prometheus that scrapes a loaded server, and holds the files against
Grafana's types and Docker Compose (test_monitoring_tools.py). promtool is Debian's package `prometheus`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import monitoring_queries
import pytest
import yaml
from monitoring_queries import ROOT, RULES, RULES_TEST, VLLM_QUERIES, dashboard, dashboard_queries, rules
from toy_server import run_server

COMPOSE = ROOT / "deploy/compose/compose.yaml"
UNITS = {"short", "s", "bytes", "percentunit", "reqps"}
ALERTS = [rule["alert"] for rule in rules() if "alert" in rule]


@pytest.fixture
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None and os.environ.get("CI"):
        pytest.fail("CI lacks promtool: is prometheus in .ci/packages.txt?")
    if program is None:
        pytest.skip("rules are not checked: promtool (Debian: prometheus) is not installed")
    return program


@pytest.fixture(scope="module")
def series() -> set[str]:
    """Return the names of all series that a server shows before its first request."""
    with run_server() as server, server.client() as client:
        page = client.get("/metrics").text
    return set(re.findall(r"^([a-z0-9_:]+)(?:\{|\s)", page, re.MULTILINE))


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_rules_pass_prometheus_own_check(promtool: str) -> None:
    done = run(promtool, "check", "rules", RULES)
    assert done.returncode == 0, done.stderr


def test_the_rules_do_what_their_cases_say(promtool: str) -> None:
    done = run(promtool, "test", "rules", RULES_TEST)
    assert done.returncode == 0, done.stdout + done.stderr


def alerts_of_failed_cases(promtool: str, folder: Path, expression: str) -> set[str]:
    """Return the alerts whose cases fail when every alert asks for something else."""
    parsed = yaml.safe_load(RULES.read_text())
    for group in parsed["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                rule.update(expr=expression.format(rule["expr"]), **{"for": "0s"})
    (folder / RULES.name).write_text(yaml.safe_dump(parsed))
    done = run(promtool, "test", "rules", folder / RULES_TEST.name)
    assert done.returncode != 0
    return set(re.findall(r"alertname: ?(\w+)", done.stdout + done.stderr))


def test_each_alert_has_a_case_in_which_it_must_fire(promtool: str, tmp_path: Path) -> None:
    shutil.copy(RULES_TEST, tmp_path)
    assert alerts_of_failed_cases(promtool, tmp_path, "({}) and on () vector(1) > 2") == set(ALERTS)


def test_each_alert_has_a_case_in_which_it_must_not_fire(promtool: str, tmp_path: Path) -> None:
    cases = yaml.safe_load(RULES_TEST.read_text())
    for case in cases["tests"]:
        case["alert_rule_test"] = [test for test in case["alert_rule_test"] if not test["exp_alerts"]]
    (tmp_path / RULES_TEST.name).write_text(yaml.safe_dump(cases))
    assert alerts_of_failed_cases(promtool, tmp_path, "vector(1)") == set(ALERTS)


def test_every_alert_has_a_severity_a_text_and_a_section_of_the_runbook() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    assert headings == ALERTS
    for rule in rules():
        if "alert" not in rule:
            continue
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"


def test_every_series_that_is_asked_for_exists_before_the_first_request(series: set[str]) -> None:
    queries = [*(rule["expr"] for rule in rules()), *dashboard_queries(), *VLLM_QUERIES]
    recorded = set(monitoring_queries.recorded_names())
    assert len(queries) > 60
    for query in queries:
        assert monitoring_queries.scraped_names(query) <= series, query
        assert set(re.findall(r"\bmambad:[a-z0-9_:]+", query)) <= recorded, query


def test_the_dashboard_is_what_its_script_makes() -> None:
    made = run(sys.executable, ROOT / "deploy/grafana/dashboard.py")
    assert made.stdout == monitoring_queries.DASHBOARD.read_text(), "run deploy/grafana/dashboard.py"


def test_the_dashboard_has_the_form_that_grafana_wants() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 30
    for panel in panels:
        if panel["type"] == "row":
            continue
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"]
        assert [target["refId"] for target in panel["targets"]] == list("ABCDE")[: len(panel["targets"])]
    names = [variable["name"] for variable in dashboard()["templating"]["list"]]
    assert names == ["datasource", "namespace", "job", "instance", "model_name", "engine"]
    used = set(re.findall(r"\$(\w+)", json.dumps([panel.get("targets") for panel in panels])))
    assert used - {"__rate_interval"} <= set(names)


def test_the_dashboard_has_a_row_for_each_part() -> None:
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    assert rows == [
        "Now", "Traffic", "Rejections and errors", "Latency", "State slots", "Blocks and cache", "Engine",
        "Process of the front end",
    ]  # fmt: skip


def test_no_two_panels_of_the_dashboard_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def compose() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return parsed


def test_what_the_compose_file_mounts_is_there() -> None:
    sources = []
    for service in compose()["services"].values():
        sources += [re.sub(r"\$\{\w+:-(\w+)\}", r"\1", volume).split(":")[0] for volume in service["volumes"]]
    files = [source for source in sources if "/" in source]
    assert len(files) == 4
    for source in files:
        assert (COMPOSE.parent / source).exists(), source
    assert {source for source in sources if "/" not in source} == set(compose()["volumes"])


def test_what_the_provisioning_names_is_what_the_compose_file_mounts() -> None:
    mounts = dict(volume.split(":")[:2] for volume in compose()["services"]["grafana"]["volumes"])
    provisioning = COMPOSE.parent / "../grafana/provisioning"
    assert mounts["../grafana/provisioning"] == "/etc/grafana/provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards/mambad.yaml").read_text())["providers"]
    assert Path(mounts["../grafana/mambad.json"]).parent == Path(provider["options"]["path"])
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_every_service_of_the_compose_file_is_hardened_watched_and_on_loopback_only() -> None:
    for service in compose()["services"].values():
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["mem_limit"]
        assert service["healthcheck"]["test"][0] == "CMD"
        assert re.fullmatch(r"\$\{[A-Z]+_IMAGE:-[a-z/]+:[a-z0-9.]+\}", service["image"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_no_secret_stands_in_the_compose_file_or_could_be_committed() -> None:
    for service in compose()["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("KEY|PASSWORD|TOKEN|SECRET", name):
                assert value.removeprefix("/run/secrets/") in service["secrets"]
    for secret in compose()["secrets"].values():
        assert secret["file"].startswith("./secrets/")
    assert "deploy/compose/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_compose_file_and_its_scrape_configuration_fit_the_server() -> None:
    mambad = compose()["services"]["mambad"]
    variables = {name for name in mambad["environment"] if name.startswith("MAMBAD_")}
    help_page = run(sys.executable, "-m", "mambad", "serve", "--help").stdout
    for name in variables:
        assert "--" + name.removeprefix("MAMBAD_").lower().replace("_", "-") in help_page
    scraped = yaml.safe_load((COMPOSE.parent / "prometheus.yaml").read_text())["scrape_configs"]
    assert scraped[0]["static_configs"][0]["targets"] == ["mambad:8000"]
    grace = int(mambad["stop_grace_period"].removesuffix("s"))
    assert grace >= int(mambad["environment"]["MAMBAD_DRAIN_GRACE"]) + 30 + 10


def test_the_scrape_configuration_passes_prometheus_own_check(promtool: str, tmp_path: Path) -> None:
    text = (COMPOSE.parent / "prometheus.yaml").read_text()
    config = tmp_path / "prometheus.yaml"
    config.write_text(text.replace("/etc/prometheus/mambad-rules.yaml", str(RULES)))
    done = run(promtool, "check", "config", config)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("copy", "original"),
    [
        ("mambad-rules.yaml", "deploy/prometheus/mambad-rules.yaml"),
        ("dashboard.json", "deploy/grafana/mambad.json"),
        ("epp-config.yaml", "deploy/llm-d/epp-config.yaml"),
    ],
)
def test_files_of_the_chart_are_the_originals(copy: str, original: str) -> None:
    """A chart can only read what lies in its folder."""
    assert (ROOT / "deploy/helm/mambad/files" / copy).read_bytes() == (ROOT / original).read_bytes()
