"""The dashboard in Grafana's own types, the compose file in Docker Compose itself and under a linter of it.

`make monitoring` installs the three and runs this; neither Grafana nor a container is started.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from monitoring_queries import ROOT, dashboard

COMPOSE = ROOT / "deploy/compose/compose.yaml"
REASON = "not checked here: `make monitoring` has the tools"

plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins", reason=REASON)


def program(name: str) -> str:
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip(REASON)
    return path


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=60
    )


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """Return where what Grafana's types hold differs from what the dashboard says."""
    if isinstance(before, dict) and isinstance(after, dict):
        missing = [f"{path}/{key}" for key in before if key not in after]
        return missing + [
            place
            for key in before
            if key in after
            for place in lost(before[key], after[key], f"{path}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [place for i, pair in pairs for place in lost(*pair, f"{path}[{i}]")]
    return [] if before == after else [path]


def through_grafanas_types(parsed: dict[str, Any]) -> dict[str, Any]:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    again: dict[str, Any] = json.loads(JSONEncoder().encode(Dashboard.from_json(parsed)))
    return again


def test_grafanas_types_know_all_that_the_dashboard_says() -> None:
    assert lost(dashboard(), through_grafanas_types(dashboard())) == []


def test_a_field_that_grafana_does_not_know_would_be_found() -> None:
    parsed = dashboard()
    parsed["panels"][1]["targets"][0]["expression"] = "up"
    parsed["panels"][1]["fieldConfig"]["defaults"]["units"] = "s"
    assert lost(parsed, through_grafanas_types(parsed)) == [
        "/panels[1]/fieldConfig/defaults/units",
        "/panels[1]/targets[0]/expression",
    ]


def test_grafana_knows_every_unit() -> None:
    from grafana_foundation_sdk.models import units

    known = {value for name, value in vars(units).items() if name[0].isupper()}
    used = {panel["fieldConfig"]["defaults"]["unit"] for panel in dashboard()["panels"] if "targets" in panel}
    assert len(used) > 3
    assert used <= known


def composed(file: Path) -> dict[str, Any]:
    """Return what Docker Compose reads from a file; an error's text if it takes none of it.

    PyPI's wrapper ends with 0 whatever happens.
    """
    done = run(program("docker-compose"), "--file", file, "config", "--format", "json")
    read: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"error": done.stderr}
    return read


def test_docker_compose_takes_the_compose_file() -> None:
    services = composed(COMPOSE)["services"]
    assert set(services) == {"mambad", "prometheus", "grafana"}
    for service in services.values():
        assert service["read_only"] is True
        assert {port["host_ip"] for port in service["ports"]} == {"127.0.0.1"}
        mounts = [volume["source"] for volume in service["volumes"] if volume["type"] == "bind"]
        assert all(Path(source).exists() for source in mounts)


def test_docker_compose_refuses_a_word_that_it_does_not_know(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text().replace("read_only:", "readonly:"))
    assert "'readonly' not allowed" in composed(wrong)["error"]


def test_a_linter_finds_nothing_grave_in_the_compose_file(tmp_path: Path) -> None:
    linter = program("compose-lint")
    done = run(linter, COMPOSE)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(re.sub(r"127\.0\.0\.1:\$", "0.0.0.0:$", COMPOSE.read_text()))
    wrong.write_text(wrong.read_text().replace("read_only: true", "privileged: true"))
    assert run(linter, wrong).returncode != 0
