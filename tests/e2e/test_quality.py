"""`make quality`: what each dtype and quantization costs the demo model stays where it was measured."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "perf" / "quality.py"


def test_settings_lose_as_much_as_was_decided(tmp_path: Path) -> None:
    output = tmp_path / "quality.json"
    command = [sys.executable, str(SCRIPT), "--tokens", "700", "--output", str(output)]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    results = {result["setting"]: result for result in json.loads(output.read_text())}
    assert len(table.splitlines()) == 2 + len(results)
    assert 1.5 < results["float32"]["bits_per_byte"] < 2.5
    assert results["float32"]["kl"] == 0
    assert results["float32"]["same_token"] == 1
    for setting, largest in (("bfloat16", 5e-5), ("int8 (served)", 8e-4), ("int4 (served)", 2e-2)):
        assert largest / 20 < results[setting]["kl"] < largest, setting
        assert abs(results[setting]["perplexity_ratio"] - 1) < 0.03, setting
    by_channel, served = results["int8, per channel"], results["int8 (served)"]
    assert by_channel["kl"] > 1.5 * served["kl"]
    assert results["int4, all layers"]["kl"] > 1.3 * results["int4 (served)"]["kl"]
