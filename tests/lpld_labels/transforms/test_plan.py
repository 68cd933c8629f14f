import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import ImageMismatchError, InvalidArgumentError
from lpld_labels.inspect.check import check_pool
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.pipeline import settings_json
from lpld_labels.transforms.plan import BudgetPlan, apply_plan, image_bytes
from lpld_labels.transforms.plan import plan_budget as plan_with
from lpld_labels.transforms.settings import DEFAULT_MIN_FIDELITY, EncodeSettings, PlanSettings, PruneSettings
from tests.factories import make_batch, make_header, make_images, prune_pool, write_pool
from tests.label_factory import make_logits

ROWS = 64


def plan_budget(pool: PoolReader, budget: int, **settings: Any) -> BudgetPlan:
    return plan_with(pool, PlanSettings(budget=budget, **settings))


def labelled_pool(path: Path, *, classes: int, batches: int = 40, images_per_class: int = 1) -> PoolReader:
    """Write a pool of logits that span few directions, 10 batches an epoch, the last of each incomplete."""
    images = make_images(images_per_class * classes, classes)
    made = []
    for number in range(batches):
        rows = ROWS // 2 if number % 10 == 9 else ROWS
        blank = make_batch(number // 10, number % 10, rows=rows, classes=classes, images=images)
        made.append(replace(blank, labels=make_logits(rows, classes, seed=number)))
    return write_pool(path, made, header=make_header(classes, ROWS), images=images)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolReader:
    return labelled_pool(tmp_path_factory.mktemp("plan") / "pool", classes=200)


def test_every_row_fits_and_one_is_recommended(pool: PoolReader) -> None:
    budget = 50_000
    plan = plan_budget(pool, budget, min_fidelity=0.97)
    assert [row for row in plan.rows if row.recommended] == [plan.recommended]
    for row in plan.rows:
        assert row.bytes <= budget
        assert row.rows <= pool.manifest.counts.rows
        assert row.views_per_image == row.rows / 200
    by_codec = {row.title: row for row in plan.rows}
    assert by_codec["int8"].ratio < by_codec["f16"].ratio
    assert by_codec["klt 0.97"].ratio < by_codec["int4"].ratio
    chosen = plan.recommended
    assert chosen.title in ("klt 0.97", "klt 0.99")
    assert "that keep at least 0.97 at T = 20" in chosen.reason
    # Nothing that keeps as much has more views.
    rivals = [row for row in plan.rows if row.fidelity.kept[20] >= 0.969]
    assert chosen.views_per_image == max(row.views_per_image for row in rivals)


def test_applying_is_pruning_then_encoding_within_the_budget(tmp_path: Path, pool: PoolReader) -> None:
    budget = 150_000
    plan = plan_budget(pool, budget, codecs=("int8",))
    assert plan.recommended.ratio > 1
    applied = apply_plan(pool, tmp_path / "at once", plan)
    total = sum(file.stat().st_size for file in (tmp_path / "at once").rglob("*") if file.is_file())
    assert 0.7 * min(budget, plan.recommended.bytes) < total <= budget
    assert total == pool_bytes(applied)
    assert check_pool(tmp_path / "at once").whole
    prune_pool(pool, tmp_path / "pruned", PruneSettings(ratio=plan.recommended.ratio))
    with PoolReader(tmp_path / "pruned") as pruned:
        two = encode_pool(pruned, tmp_path / "two steps", EncodeSettings(codec="int8"))
    assert two.manifest.content_digest == applied.content_digest
    (step,) = applied.header.lineage
    assert (step.operation, step.parent_digest) == ("plan", pool.manifest.content_digest)
    assert step.parameters["settings"] == settings_json(plan.settings)
    assert step.parameters["fidelity"] == plan.recommended.fidelity.as_json()
    assert apply_plan(pool, tmp_path / "at once", plan) == applied


THOROUGH = [pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 12)]


@pytest.mark.parametrize("seed", [0, 1, 2, *THOROUGH])
def test_plans_of_random_small_pools_fit_their_budget(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, batches = int(rng.integers(2, 60)), int(rng.integers(2, 12))
    with labelled_pool(tmp_path / "pool", classes=classes, batches=batches) as small:
        size = pool_bytes(small.manifest)
        budget = int(size * rng.choice([rng.uniform(0.3, 1.1), 1]))
        try:
            plan = plan_budget(small, budget, codecs=("f16", "int8", "topk:2", "klt"))
        except InvalidArgumentError as error:
            if "too small for even one batch" not in str(error):
                raise
            return
        for number, row in enumerate(plan.rows):
            applied = apply_plan(small, tmp_path / f"out{number}", plan, row=row)
            whole = row.codec is None and budget >= size
            assert (row.pruned is None) >= whole
            assert pool_bytes(applied) <= row.bytes
            assert row.bytes <= budget or whole
            assert check_pool(tmp_path / f"out{number}").whole


def test_incomplete_batches_are_priced_by_their_rows(tmp_path: Path) -> None:
    batches = [make_batch(*divmod(number, 2), rows=30, classes=200) for number in range(12)]
    images = make_images(classes=200)
    with write_pool(tmp_path / "pool", batches, header=make_header(200, 128), images=images) as pool:
        size = pool_bytes(pool.manifest)
        whole = plan_budget(pool, size + 3000, codecs=("f16",)).recommended
        assert (whole.pruned, whole.rows) == (None, 360)
        assert abs(whole.bytes - size) < 0.2 * size
        half = apply_plan(pool, tmp_path / "out", plan_budget(pool, size // 2, codecs=("f16",)))
    assert size / 5 < pool_bytes(half) <= size // 2
    assert 1 <= half.counts.batches < 12


def test_with_room_for_everything_or_for_nothing_good_the_most_faithful_wins(pool: PoolReader) -> None:
    for budget, fidelity, codecs, reason in (
        (10**8, DEFAULT_MIN_FIDELITY, ("int8", "f16"), "every view"),
        (10**5, 0.9999, ("topk:10", "topk:40"), "nothing that fits keeps"),
    ):
        chosen = plan_budget(pool, budget, codecs=codecs, min_fidelity=fidelity).recommended
        assert chosen.title == codecs[1]
        assert reason in chosen.reason
        assert budget < 10**8 or (chosen.pruned, chosen.rows) == (None, pool.manifest.counts.rows)


def test_a_small_pool_of_ten_classes_does_not_need_a_basis(tmp_path: Path) -> None:
    with labelled_pool(tmp_path / "small", classes=10, batches=4) as small:
        plan = plan_budget(small, pool_bytes(small.manifest) - 1500, min_fidelity=0.999)
    assert plan.recommended.title in ("f16", "int8", "int6")
    assert "basis costs more than it saves" in plan.recommended.reason


@pytest.mark.parametrize(
    ("budget", "settings", "words"),
    [
        (5000, {"codecs": ("int8", "klt")}, r"too small for even one batch.*at least \d+ bytes"),
        (100_000, {"min_fidelity": 0.0}, "min fidelity is wrong"),
        (100_000, {"min_fidelity": 1.0}, "min fidelity is wrong"),
        (100_000, {"codecs": ("zip",)}, "unknown codec"),
    ],
)
def test_bad_budgets_and_settings(pool: PoolReader, budget: int, settings: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        plan_budget(pool, budget, **settings)


def test_lossy_pools_are_planned_only_when_asked(tmp_path: Path, pool: PoolReader) -> None:
    encode_pool(pool, tmp_path / "int4", EncodeSettings(codec="int4"))
    with PoolReader(tmp_path / "int4") as lossy:
        with pytest.raises(InvalidArgumentError, match="already lost"):
            plan_budget(lossy, 100_000, codecs=("int4",))
        assert plan_budget(lossy, 100_000, codecs=("int4",), from_lossy=True).recommended.title == "int4"


def test_images_are_weighed(tmp_path: Path) -> None:
    images = make_images(3, 2)
    for number, path in enumerate(images.paths):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"x" * (10 + number))
    assert image_bytes(tmp_path, images) == 33
    (tmp_path / images.paths[1]).unlink()
    with pytest.raises(ImageMismatchError, match="image00001"):
        image_bytes(tmp_path, images)


@pytest.fixture(scope="module")
def results(project: Path) -> dict[str, Any]:
    found = json.loads((project / "benchmarks/results/accuracy_tiny100.json").read_text())["results"]
    return dict(found)


def test_the_default_fidelity_made_the_best_students(results: dict[str, Any]) -> None:
    found = {f"f16 at {ratio:g}x": DEFAULT_MIN_FIDELITY for ratio in (40, 160)}
    assert found == results["decisions"]["klt_fidelity"]
    for ratio in (40, 160):
        students = {
            cell["fidelity"]: cell["top1"]
            for cell in results["cells"]
            if (cell["codec"], cell["ratio"], cell["seed"]) == ("klt", ratio, 0)
            and not (cell["temperature_schedule"] or cell["student_temperature"])
        }
        assert len(students) == 5
        assert max(students, key=lambda one: students[one]) == DEFAULT_MIN_FIDELITY


def test_the_documents_show_the_measured_students(project: Path, results: dict[str, Any]) -> None:
    plain = [
        cell
        for cell in results["cells"]
        if (cell["method"], cell["seed"], cell["pool"], cell["by"]) == ("lpld", 0, "batches", "random")
        and cell["iterations"] == results["decisions"]["iterations"]
        and not (cell["policy"] or cell["temperature_schedule"] or cell["student_temperature"])
    ]
    measured = {
        (f"{cell['codec']} {cell['fidelity'] or ''}".strip(), cell["rows"], round(100 * cell["top1"], 1))
        for cell in plain
        if cell["ratio"] == 40 or (cell["ratio"], cell["codec"]) == (1, "f16")
    }
    row = r"^\| `([\w:]+)`(?: ([\d.]+))?(?:, all.*)? \| ([\d,]+) \| ([\d.]+) \|$"
    shown = re.findall(row, (project / "docs/howto/choose.md").read_text(), re.MULTILINE)
    assert len(shown) == 10
    assert measured == {
        (f"{codec} {float(fidelity) if fidelity else ''}".strip(), int(views.replace(",", "")), float(top1))
        for codec, fidelity, views, top1 in shown
    }


def test_the_documents_show_the_gain_of_a_falling_temperature(project: Path, results: dict[str, Any]) -> None:
    details = {claim["claim"]: claim["detail"].split(" (")[0] for claim in results["claims"]}
    helps = details["temperature schedule step helps klt 0.95 in the bytes of f16 at 40x"]
    warmed, plain = helps.replace("%", "").split(" against ")
    start = "klt 0.95 with temperature schedule step in"
    (within,) = [text for claim, text in details.items() if claim.startswith(start)]
    everything = within.replace("%", "").split(" against ")[1]
    text = " ".join((project / "docs/howto/choose.md").read_text().split())
    assert f"from {plain} to {warmed} % on those seeds" in text
    assert f"at a constant one, {everything} %" in text
