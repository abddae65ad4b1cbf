"""Manifest and summary: what they hold, and that a malformed one is refused."""

import json
import math
from pathlib import Path

import pytest

from tickgraph.core.errors import TickgraphError
from tickgraph.run import manifest
from tickgraph.run.folder import RunFolder

FACTS = {"task": "toy", "reference": "toy", "seeds": {"train": 1}, "programs": {}}


def test_a_manifest_names_machine_versions_and_commit(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    manifest.write_manifest(run, **FACTS)
    found = manifest.read_manifest(run)
    assert found["machine"]["cores"] >= 1
    assert {"python", "torch", "numpy"} <= set(found["versions"])
    assert found["commit"] is None or len(found["commit"]) == 40
    assert found["dirty"] in (None, True, False)


def test_a_summary_holds_the_evaluation_and_no_nan(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    manifest.write_summary(run, "completed", iteration=3, env_steps=6, evaluation={"trained": {"return": math.nan}})
    found = manifest.read_summary(run)
    assert (found["status"], found["iteration"], found["env_steps"]) == ("completed", 3, 6)
    assert found["evaluation"] == {"trained": {"return": None}}
    assert "NaN" not in run.summary.read_text()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not readable"),
        ("[]", "expected a JSON object"),
        ("{}", "lacks format"),
        (json.dumps({"format": 9, **dict.fromkeys(manifest._SUMMARY_KEYS[1:], "x")}), "format 9, this version reads 1"),
        (json.dumps({"format": 1, **dict.fromkeys(manifest._SUMMARY_KEYS[1:], 1)}), "status is 1, expected one of"),
        (
            json.dumps({"format": 1, **dict.fromkeys(manifest._SUMMARY_KEYS[1:], "x")}),
            "iteration is 'x', expected a wh",
        ),
    ],
)
def test_a_malformed_summary_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    run = RunFolder(tmp_path)
    run.summary.write_text(text)
    with pytest.raises(TickgraphError, match=reason):
        manifest.read_summary(run)


def test_a_missing_manifest_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(TickgraphError, match="is it the folder of a run"):
        manifest.read_manifest(RunFolder(tmp_path))
