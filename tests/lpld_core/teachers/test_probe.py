from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_core.relabel.build import Build, BuildResult, build_pool, run_build
from lpld_core.relabel.verify_teacher import verify_with_teacher
from lpld_core.settings import BuildSettings, Part, TeacherChoice
from lpld_core.teachers.ensemble import Ensemble, load_ensemble
from lpld_core.teachers.teacher import load_teacher
from lpld_labels import LabelPoolError, PoolReader
from lpld_labels.errors import PoolConflictError
from lpld_labels.format.probe import TOLERANCE, probe_difference, probes_of
from lpld_labels.transforms.copy import copy_pool
from lpld_labels.transforms.prune import plan_prune, write_pruned
from lpld_labels.transforms.settings import PruneSettings
from tests.lpld_core.image_folders import write_images
from tests.lpld_core.teachers import changing

NAME = "tests.lpld_core.teachers.changing:factory"
SETTINGS = BuildSettings(epochs=2, batch_size=3, teachers=(TeacherChoice(name=NAME),))
CHANGES = ("forward", "normalisation", "interpolation")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("probe") / "images", classes=3, per_class=2)


@pytest.fixture
def pool(images: Path, tmp_path: Path) -> Path:
    build_pool(images, tmp_path / "pool", SETTINGS)
    return tmp_path / "pool"


def grow(images: Path, pool: Path) -> BuildResult:
    return build_pool(images, pool, replace(SETTINGS, epochs=4))


def some_batches(pool: Path, out: Path, first: int) -> Path:
    """Write a pool of every other batch."""
    with PoolReader(pool) as reader:
        plan = plan_prune(reader, PruneSettings(ratio=1))
        write_pruned(replace(plan, kept=np.arange(first, len(reader), 2)), out)
    return out


@pytest.mark.parametrize("change", CHANGES)
class TestAnotherTeacherWithTheSameWeightsIsRefused:
    def test_growing(self, images: Path, pool: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(changing, "CHANGE", change)
        with pytest.raises(PoolConflictError, match="different outputs"):
            grow(images, pool)

    def test_resuming(
        self, images: Path, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = replace(SETTINGS, part=Part(number=1, of=2))
        run_build(Build.prepare(images, tmp_path / "pool", settings))
        monkeypatch.setattr(changing, "CHANGE", change)
        settings = replace(SETTINGS, part=Part(number=2, of=2))
        with pytest.raises(PoolConflictError, match=r"probe.* differs"):
            run_build(Build.prepare(images, tmp_path / "pool", settings))

    def test_merging(
        self, images: Path, pool: Path, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = some_batches(pool, tmp_path / "first", 0)
        second = some_batches(pool, tmp_path / "second", 1)
        copy_pool([first, second], tmp_path / "merged")
        monkeypatch.setattr(changing, "CHANGE", change)
        build_pool(images, tmp_path / "other", SETTINGS)
        other = some_batches(tmp_path / "other", tmp_path / "other_second", 1)
        with pytest.raises(PoolConflictError, match="probe of their teachers differs"):
            copy_pool([first, other], tmp_path / "wrong")
        assert not (tmp_path / "wrong").exists()

    def test_verifying(self, images: Path, pool: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(changing, "CHANGE", change)
        with PoolReader(pool) as reader:
            check = verify_with_teacher(reader, images, load_teacher(NAME), tolerance=1e9)
        assert not check.agrees
        assert "outputs on random images differ" in check.wrong_teachers[0]


def test_the_same_teacher_may_grow_and_is_verified(images: Path, pool: Path) -> None:
    assert grow(images, pool).labelled == 4
    with PoolReader(pool) as reader:
        assert len(list(probes_of(reader.header))) == 2
        assert verify_with_teacher(reader, images, load_teacher(NAME)).agrees
        assert verify_with_teacher(reader, images, load_teacher(NAME, input_size=(30, 20))).agrees


def test_another_precision_is_accepted() -> None:
    dtype = torch.bfloat16
    ensemble = load_ensemble([TeacherChoice(name="small-resnet10:width=16", weights="random")], classes=10)
    expected = ensemble.probe((32, 32))
    (teacher,) = ensemble.teachers
    model = teacher.model.to(dtype)
    model.register_forward_pre_hook(lambda _, inputs: inputs[0].to(dtype))
    difference = probe_difference(expected, Ensemble([replace(teacher, model=model)]).probe((32, 32)))
    assert 0 < difference < TOLERANCE


@pytest.mark.parametrize("recorded", [None, "x", [1.0], [1.0, "x"], [1.0, float("nan")], {"a": 1}])
def test_a_probe_that_cannot_be_compared_differs(recorded: object) -> None:
    assert probe_difference(recorded, [1.0, 2.0]) > TOLERANCE
    assert probe_difference([1.0, 2.0], [1.0, float("nan")]) > TOLERANCE


def undeclared(num_classes: int = 3) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, num_classes)
    )


class Answer(torch.nn.Module):
    """Returns an object with logits, as Hugging Face's models do."""

    input_size = (8, 12)
    mean = std = (0.5, 0.5, 0.5)

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, 5)

    def forward(self, pixels: torch.Tensor) -> object:
        return type("Output", (), {"logits": self.head(pixels.mean((2, 3)))})()


class TestWhatAFactoryDeclares:
    here = "tests.lpld_core.teachers.test_probe"

    def test_size_and_normalisation_are_required(self) -> None:
        with pytest.raises(LabelPoolError, match=r"give --size, --mean and --std"):
            load_teacher(f"{self.here}:undeclared", weights="random")
        mean, std = (0.1, 0.2, 0.3), (1.0, 1.0, 1.0)
        teacher = load_teacher(
            f"{self.here}:undeclared", weights="random", input_size=(9, 9), mean=mean, std=std
        )
        assert (teacher.input_size, teacher.mean, teacher.std) == ((9, 9), mean, std)

    def test_attributes_of_the_module_are_used(self) -> None:
        teacher = load_teacher(f"{self.here}:Answer", weights="random")
        assert (teacher.input_size, teacher.mean, teacher.classes) == ((8, 12), (0.5, 0.5, 0.5), 5)


def test_outputs_with_logits_are_unwrapped_also_in_workers() -> None:
    import pickle

    teacher = load_teacher("tests.lpld_core.teachers.test_probe:Answer", weights="random")
    again = pickle.loads(pickle.dumps(teacher))
    pixels = torch.rand(2, 3, 8, 12)
    torch.testing.assert_close(again.model(pixels), teacher.model(pixels))
    assert teacher.model(pixels).shape == (2, 5)


def test_a_hugging_face_classifier_brings_its_size_and_normalisation(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=7, layer_type="basic"
    )
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path)
    processor = transformers.ConvNextImageProcessor(
        size={"shortest_edge": 40}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4]
    )
    processor.save_pretrained(tmp_path)
    teacher = load_teacher(f"hf:{tmp_path}")
    assert (teacher.input_size, teacher.mean, teacher.classes) == ((40, 40), (0.4, 0.5, 0.6), 7)
