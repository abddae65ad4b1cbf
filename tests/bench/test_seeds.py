"""Seeds of two ways to learn: areas under their curves by hand, and the command on made-up and on real runs."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tickgraph.core.errors import TickgraphError

FILE = Path(__file__).parents[2] / "benchmarks" / "seeds.py"


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("seeds", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "seeds", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--seeds 0", "--seeds is '0', expected a whole number of at least 1"),
        ("--iterations x", "--iterations is 'x', expected a whole number"),
        ("--num-envs 99999999999", "--num-envs is '99999999999', expected a whole number of at most"),
        ("--gpus a,b", "--gpus is 'a', expected a whole number of at least 0"),
        ("--reference-gpus 1,", "--reference-gpus is '', expected a whole number of at least 0"),
        ("--limit-s 0", "--limit-s: 0.0 is no time"),
        ("--limit-s nan", "--limit-s: nan is no time"),
        ("--only foo", "--only: invalid choice: 'foo'"),
    ],
)
def test_a_wrong_option_is_one_line(seeds, words, text):
    with pytest.raises(TickgraphError) as caught:
        seeds.parsed(words.split())
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_gpus_are_numbers_however_they_are_written(seeds):
    options = seeds.parsed(["--gpus", "0, 1", "--reference-gpus", "01"])
    assert (options.gpus, options.reference_gpus) == ("0,1", "1")


@pytest.mark.parametrize(("path", "text"), [("-", "a stream takes only results"), ("none/x.json", "no folder none;")])
def test_a_result_that_cannot_be_kept_is_refused_before_anything_is_played(seeds, path, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TickgraphError, match=text):
        seeds.main(["--tiny", "--out", "out", "--json", path])
    assert not list((tmp_path / "out").iterdir())


def test_the_mean_level_is_the_area_by_trapezoids_over_the_range(seeds):
    points = [(0.0, 0.0), (2.0, 4.0), (6.0, 4.0)]
    assert seeds.mean_level(points, 0.0, 6.0) == pytest.approx((4 + 16) / 6)
    assert seeds.mean_level(points, 1.0, 3.0) == pytest.approx((3 + 4) / 2)  # 2 to 4, then 4
    assert seeds.value_at(points, 1.0) == 2.0
    assert seeds.value_at(points, 9.0) == 4.0
    # Rows without an ended episode are no zeros: the line goes on over them.
    rows = [{"env_steps": 0, "r": 1.0}, {"env_steps": 2, "r": None}, {"env_steps": 4, "r": 3.0}, {"env_steps": 6}]
    assert seeds.points_of(rows, "r") == [(0.0, 1.0), (4.0, 3.0)]


def test_the_range_is_common_to_all_curves_and_skips_their_first_rows(seeds):
    short, late = [(x, 0.0) for x in (1.0, 2.0, 3.0, 4.0, 9.0)], [(x, 0.0) for x in (3.0, 4.0, 5.0, 20.0)]
    assert seeds.common_range([short, late]) == (5.0, 9.0)
    assert seeds.common_range([short, late[:2]]) is None  # no row behind the skipped ones
    assert seeds.common_range([short[:3], late]) is None  # ends before the other begins
    assert seeds.common_range([]) is None


def test_a_curve_is_thinned_by_means_of_neighbours(seeds):
    assert seeds.thinned([(0.0, 1.0), (2.0, 3.0), (4.0, 7.0)], most=2) == [(1.0, 2.0), (4.0, 7.0)]
    assert len(seeds.thinned([(float(x), 0.0) for x in range(401)])) == 134


def test_areas_are_compared_by_their_means_ranges_and_spread(seeds):
    same = seeds.compare([90.0, 110.0, 100.0], [95.0, 105.0, 112.0])
    assert same["ratio"] == pytest.approx(100 / 104)
    assert same["within"] and same["inside"]
    # By hand: variances 100 and 73, so the error is ratio * sqrt(100 / 3 / 100^2 + 73 / 3 / 104^2), times t of 2.
    width = 100 / 104 * (1 / 300 + 73 / 3 / 104**2) ** 0.5 * 4.303
    assert same["ratio_ci95"] == pytest.approx([100 / 104 - width, 100 / 104 + width])
    apart = seeds.compare([100.0, 101.0], [109.0, 110.0])
    assert apart["within"] and not apart["inside"]
    far = seeds.compare([50.0, 130.0], [70.0, 140.0])  # 90 and 105
    assert far["inside"] and far["within"]
    assert not seeds.compare([50.0, 120.0], [70.0, 140.0])["within"]  # 85 and 105
    negative = seeds.compare([-1.0, 3.0], [-2.0, -1.0])
    assert negative["ratio"] is None and not negative["within"]
    assert seeds.compare([1.0], [1.0])["ratio_ci95"] is None


def test_p_is_the_share_of_ways_to_deal_the_runs_that_are_as_far_apart(seeds):
    assert seeds.p_value([1.0, 2.0], [3.0, 4.0]) == pytest.approx(2 / 6)  # this one and its mirror image
    assert seeds.p_value([1.0, 4.0], [2.0, 3.0]) == 1.0
    assert seeds.p_value([0.0] * 15, [1.0] * 15) is None


def made_up(seeds, folder: Path, returns: dict[str, list[float]], rows: int = 6) -> None:
    """Write runs whose return grows evenly, by a level of each run an interval."""
    families = {family: {"seeds": len(levels), "note": "", "command": ""} for family, levels in returns.items()}
    (folder / "settings.json").write_text(json.dumps({"task": "toy", "families": families}))
    for family, levels in returns.items():
        for seed, level in enumerate(levels):
            run = seeds.Run(folder, "toy", family, seed)
            run.folder.path.mkdir(parents=True)
            lines = [{"iteration": n, "env_steps": 8 * n, "episode_return": level * n} for n in range(1, rows + 1)]
            run.folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_folders_are_reported_again_and_a_run_that_failed_is_named(seeds, tmp_path, capsys):
    made_up(seeds, tmp_path, {"fast": [90.0, 110.0, 500.0], "reference": [95.0, 109.0, 104.0]})
    failed = seeds.Run(tmp_path, "toy", "fast", 2)
    failed.ended.write_text("1\n")
    assert seeds.main(["--report-only", str(tmp_path)]) == 1
    result = json.loads((tmp_path / "seeds.json").read_text())
    assert result["range_env_steps"] == [24, 48]
    (ratio,) = result["ratios"]
    assert ratio["fast_mean"] == pytest.approx(450) and ratio["runs"] == {"fast": 2, "reference": 3}
    assert ratio["reference_rise"] == pytest.approx((6 - 0.15) / (3 + 0.15))  # 3 to 6, tenths of 0.3
    assert not ratio["learned"]
    assert ratio["ratio_met"] and ratio["inside_met"] and not ratio["complete"] and not ratio["unharmed_met"]
    assert [row["counted"] for row in result["results"]] == [True, True, False, True, True, True]
    assert (tmp_path / "seeds.png").stat().st_size > 1000
    said = capsys.readouterr().out
    assert "not counted: failed (exit code 1)" in said and "INCOMPLETE" in said
    failed.ended.write_text("130\n")  # stopped and saved: it counts
    assert seeds.main(["--report-only", str(tmp_path)]) == 0
    (ratio,) = json.loads((tmp_path / "seeds.json").read_text())["ratios"]
    assert ratio["complete"] and not ratio["ratio_met"] and not ratio["unharmed_met"]


def test_evaluations_are_told_by_their_least_mean_and_greatest(seeds):
    rows = [{"family": "fast", "evaluation": {"yaw_rate_error": value}} for value in (0.1, 0.3, 0.5)]
    rows.append({"family": "reference", "evaluation": {}})
    found = seeds.judged_of(rows)
    assert found == {"fast": {"yaw_rate_error": {"runs": 3, "least": 0.1, "mean": pytest.approx(0.3), "greatest": 0.5}}}
    assert seeds.numbers_of({"survival": 1.0, "report": {"clips": []}, "success": None}) == {"survival": 1.0}


def test_a_run_that_stopped_early_does_not_cut_the_range_of_all(seeds, tmp_path):
    made_up(seeds, tmp_path, {"fast": [1.0, 1.0, 1.0], "reference": [1.0]}, rows=20)
    whole = json.loads((tmp_path / "settings.json").read_text())
    assert seeds.result_of(tmp_path, whole)["ratios"][0]["unharmed_met"]
    run = seeds.Run(tmp_path, "toy", "fast", 1)
    lines = run.folder.metrics.read_text().splitlines(keepends=True)
    run.folder.metrics.write_text("".join(lines[:5]))
    result = seeds.result_of(tmp_path, whole)
    assert result["range_env_steps"] == (24, 160)
    assert "before half" in result["results"][1]["left_out"]


def test_families_get_their_own_gpus_and_the_words_of_their_path(seeds, tmp_path):
    options = seeds.parsed(["--gpus", "0,1", "--seeds", "2"])
    jobs = seeds.jobs_of(options, tmp_path)
    assert [(job.run.name, job.gpus) for job in jobs] == [
        ("fast_0", ("0",)),
        ("reference_0", ("1",)),
        ("fast_1", ("0",)),
        ("reference_1", ("1",)),
    ]
    fast, reference = (set(job.command) for job in jobs[:2])
    assert "autograd" in reference - fast and "highest" in reference - fast
    assert "--execution" not in reference
    assert {job.gpus for job in seeds.jobs_of(seeds.parsed(["--gpus", "3"]), tmp_path)} == {("3",)}
    only = seeds.parsed(["--gpus", "0,1", "--only", "fast", "--reference", "eager"])
    assert {job.gpus for job in seeds.jobs_of(only, tmp_path)} == {("0", "1")}
    assert "eager" in seeds.words_of(only, "reference")
    spread = seeds.jobs_of(seeds.parsed(["--gpus", "0,1", "--reference-gpus", "1,1,0", "--seeds", "4"]), tmp_path)
    assert [job.gpus[0] for job in spread if job.run.family == "reference"] == ["1", "1", "0", "1"]
    assert {job.gpus for job in spread if job.run.family == "fast"} == {("0",)}
    # The learning rate falls as in a whole run of the task, however few iterations are played.
    words = seeds.words_of(options, "fast")
    assert words[words.index("--train.lr-iterations") + 1] == "5000"


def test_the_command_trains_both_families_and_refuses_to_mix_runs(seeds, tmp_path, capsys):
    words = ["--tiny", "--seeds", "1", "--out", str(tmp_path)]
    assert seeds.main(words) == 0
    result = json.loads((tmp_path / "seeds.json").read_text())
    assert [ratio["figure"] for ratio in result["ratios"]] == list(seeds.FIGURES)
    assert result["machine"]["cores"] >= 1 and result["versions"]["torch"]
    assert all(0 < len(row["curves"]["episode_return"]) <= seeds.POINTS for row in result["results"])
    # On a CPU the fast path is the plain one: the same numbers, which no other comparison may yield.
    assert result["ratios"][0]["ratio"] == 1.0
    said = capsys.readouterr().out
    assert "rise" in said and "1 run judged" in said
    assert result["judged"]["fast"]["return"] == result["judged"]["reference"]["return"]
    with pytest.raises(TickgraphError, match="has run fast_0 already"):
        seeds.main(words)
