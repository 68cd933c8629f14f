import os
from pathlib import Path

import torch

from lpld_core.teachers.teacher import load_teacher
from lpld_labels.pool.pool_files import manifest_of
from tests.cli.build_runs import Cli, facts, one_line_error, passed
from tests.lpld_labels.interop.label_folders import CLASSES, write_epochs, write_images
from tests.lpld_labels.interop.restated import SMALL, label_again, small_teacher

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.2)


def test_a_folder_with_a_bad_file(cli: Cli, tmp_path: Path) -> None:
    images = ("--images", write_images(tmp_path / "images"))
    labels = write_epochs(tmp_path / "labels", ids_file=True)
    report = facts(cli("import", labels, tmp_path / "whole", *images, "--json"))
    assert (report["format"], report["batches"], report["rows"], report["epochs"]) == ("lpld", 9, 60, 3)
    assert report["holes"] == []
    assert report["content_digest"] == manifest_of(tmp_path / "whole").content_digest
    os.truncate(labels / "epoch_1" / "batch_0.tar", 9)
    words = ("import", labels, tmp_path / "pool", *images)
    one_line_error(cli(*words), "not a complete torch.save file", "epoch_1/batch_0.tar")
    options = ("--skip-bad", "--teacher", "resnet18", "--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2")
    shown = passed(cli(*words, *options)).stdout
    for text in ("lpld", "epochs", "assumed", "32 x 32", "holes", "epoch_1/batch_0.tar: "):
        assert text in shown
    (teacher,) = manifest_of(tmp_path / "pool").header.teachers
    assert (teacher.name, teacher.mean, teacher.std) == ("resnet18", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


def test_an_ensemble_is_imported_and_confirmed_by_all_its_teachers(cli: Cli, tmp_path: Path) -> None:
    """G-VBSM, labelled by two networks; verify takes as many teachers as the folder had."""
    images = write_images(tmp_path / "images")
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True)
    teacher = load_teacher(SMALL, weights="random", classes=CLASSES, input_size=(32, 32), mean=MEAN, std=STD)
    other = small_teacher(CLASSES, mean=MEAN, std=STD, seed=5)
    weights = tmp_path / "other.pt"
    torch.save(other.model.state_dict(), weights)
    label_again(source, images, [teacher, other], side=32)
    values = ("--mean", ",".join(map(str, MEAN)), "--std", ",".join(map(str, STD)))
    words = ("import", source, tmp_path / "pool", "--images", images, *values)
    one_line_error(cli(*words), "--ensemble")
    passed(cli(*words, "--ensemble", "average"))
    first, second = (("--teacher", SMALL, "--teacher-weights", found) for found in ("random", weights))
    checking = ("verify", tmp_path / "pool", "--images", images, *values, "--size", 32, *first)
    assert "true: 20 rows" in passed(cli(*checking, *second)).stdout
    assert cli(*checking).exit_code == 1
