from dataclasses import replace
from pathlib import Path

from benchmarks.codec_students.__main__ import CHAINS, run_chain, verdict


def test_the_chain_runs_and_the_verdict_follows_from_the_figures(tmp_path: Path) -> None:
    chain = replace(CHAINS[0], epochs=1, teacher_epochs=1, images_per_class=2)
    result = run_chain(chain, tmp_path, seeds=[0])
    f16, klt, top_k = result["pools"]
    assert f16["labels"] == "f16"
    assert klt["fidelity"]["kept"]["20"] > 0.9
    assert top_k["labels"].startswith("topk:")
    assert 0 <= result["teacher_top1"] <= 1
    f16["top1_mean"], klt["top1_mean"] = 0.50, 0.49
    f16["top1_std"] = 0.02
    assert "-1.00 points, within the spread of 2.00" in verdict(result)
    f16["top1_std"] = 0.005
    assert "outside" in verdict(result)
