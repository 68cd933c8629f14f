from benchmarks.speed.loader import QUICK, Source, run


def test_a_tiny_run_measures_everything() -> None:
    results = run(Source(), QUICK, workers=(0, 1))
    assert set(results["end_to_end"]) == {f"{size} px, {n} workers" for size in (224, 64) for n in (0, 1)}
    for row in results["end_to_end"].values():
        assert row["speedup"] > 0
        assert row["agreement"]["mean_grey_levels"] < 0.5
    labels = results["random_labels"]
    assert {"torch.load per batch", "lpld-labels f16", "lpld-labels f16:plain"} <= set(labels)
    assert labels["lpld-labels int8"]["bytes_per_batch"] < labels["lpld-labels f16"]["bytes_per_batch"]
    assert all(row["per_s"] > 0 for row in labels.values())
