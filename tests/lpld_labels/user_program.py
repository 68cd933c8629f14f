"""A user's program that calls every verb. test_verbs.py runs it, and mypy checks it."""

from pathlib import Path

import lpld_labels as lpld

NET, SIDE = "small-resnet10:width=8,stem_stride=2", 16


def shown(done: int, total: int) -> None:
    assert 0 <= done <= total or total == 0


def main(real: Path, work: Path) -> None:
    """real: an image folder."""
    weights, statistics, syn, pool = (work / name for name in ("net.st", "stats.st", "syn", "pool"))
    squeezed = lpld.squeeze(
        real,
        statistics,
        teacher=NET,
        weights=weights,
        size=SIDE,
        train_teacher=True,
        epochs=1,
        progress=shown,
    )
    bound: int = squeezed.bound.required_passes
    made = lpld.recover(syn, teacher=NET, weights=weights, statistics=statistics, ipc=4, iterations=2)
    sheet: Path | None = made.contact_sheet
    built = lpld.build(
        syn, pool, preset="tiny", teacher=NET, weights=weights, epochs=8, batch_size=4, codec="f32"
    )
    labelled: int = built.labelled
    student = lpld.train(
        pool, images=syn, val=real, student=NET, epochs=1, batch_size=4, out=work / "student", progress=shown
    )
    top1: float | None = student.accuracy.top1 if student.accuracy else None
    half = lpld.prune(pool, work / "half", ratio=2, progress=True)
    tenth = lpld.prune(pool, work / "tenth", budget="1x", by="confidence", prefer="hard", dry_run=True)
    small = lpld.encode(work / "half", work / "small", codec="int8")
    ratio: float = small.before / small.after
    planned = lpld.plan(pool, budget="2x", codecs=("int8",), images=syn, from_lossy=False)
    codec: str = planned.plan.recommended.name
    exported = lpld.export(pool, work / "labels", format="lpld")
    claims: list[bool] = [claim.holds for claim in exported.claims]
    imported = lpld.import_labels(work / "labels", work / "imported", images=syn, output_size=SIDE)
    warnings: tuple[str, ...] = imported.odd
    copied = lpld.copy(pool, work / "packed", images=syn)
    page = lpld.report(work / "packed", out=work / "report.html")
    checked = lpld.verify(pool, images=syn, teacher=[NET], weights=[weights], batches=2)
    good: bool = checked.good
    examined = lpld.doctor(pool, images=syn, teacher=NET, weights=weights, device="cpu", student=NET)
    failed: str | None = examined.failed
    size: int = lpld.summary(pool).total_bytes
    for result in (
        squeezed,
        made,
        built,
        student,
        half,
        tenth,
        small,
        planned,
        exported,
        imported,
        copied,
        examined,
    ):
        assert repr(result).startswith(type(result).__name__)
        assert "<table>" in result._repr_html_()
    assert "page: " in repr(page)
    assert (bound > 0, labelled, ratio > 0, codec, size > 0) == (True, 24, True, "int8", True)
    assert sheet is not None
    assert len(claims) > 0
    assert all(warnings)
    assert top1 is not None
    with lpld.PoolReader(work / "packed") as reader:
        assert reader._repr_html_().count("<img") == 4
    assert good
    assert failed is None
