"""The directory in which mistakes are made: pools, image folders, a label folder, things that are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lpld_core.settings import BuildSettings, TeacherChoice
from lpld_labels import PoolWriter, Teacher
from lpld_labels.format.manifest import LineageStep
from lpld_labels.render.images import find_images
from lpld_labels.transforms.copy import merge_pools
from lpld_labels.transforms.lineage import SETTINGS, settings_json
from tests.factories import make_batches, make_header, make_images, write_pool
from tests.lpld_core.image_folders import write_images
from tests.lpld_labels.interop.label_folders import write_epochs
from tests.lpld_labels.interop.label_folders import write_images as write_labelled_images
from tests.lpld_labels.loader.loader_pools import build
from tests.lpld_labels.loader.loader_pools import write_images as write_pictures

TEACHER = "small-resnet10:width=8,stem_stride=2"


def make_place(root: Path) -> None:
    """Write pools, image folders, a label folder and things that are none of these."""
    batches = make_batches(2, 4)
    write_pool(root / "pool", batches).close()
    write_pool(root / "int8", batches, codec="int8").close()
    write_pool(root / "part0", batches[::2]).close()
    write_pool(root / "part1", batches[1::2]).close()
    write_pool(root / "others", make_batches(1, 2, classes=20), images=make_images(classes=20)).close()
    header = replace(make_header(), seed=5)
    write_pool(root / "seed5", batches[:1], header=header).close()
    write_images(root / "images")
    write_images(root / "two", classes=2)
    write_labelled_images(root / "labelled")
    write_epochs(root / "labels", epochs=1, ids_file=True)
    write_epochs(root / "noids", epochs=1)
    write_pool(root / "edited", batches[:1]).close()
    (root / "edited" / "README.md").write_text("my own words")
    _built_pool(root / "built")
    pictures = write_pictures(root / "pictures", 12)
    with build(root / "bare", pictures) as bare:
        merge_pools([bare], root / "packed", images=find_images(bare, pictures))
    (root / "empty").mkdir()
    (root / "full").mkdir()
    (root / "full" / "thesis.txt").write_text("years of work")
    (root / "file").write_text("not what you think")
    (root / "loop").symlink_to(root / "loop")
    (root / "broken").mkdir()
    (root / "broken" / "pool.json").write_text("{")
    (root / "damaged" / "class0").mkdir(parents=True)
    (root / "damaged" / "class0" / "a.png").write_bytes(b"no image")


def _built_pool(path: Path) -> None:
    """Write a pool that says it was built."""
    teacher = Teacher(name=TEACHER, mean=(0.5,) * 3, std=(0.2,) * 3)
    header = replace(make_header(classes=3), teachers=(teacher,))
    images = make_images(classes=3)
    settings = BuildSettings(epochs=2, teachers=(TeacherChoice(name=TEACHER, weights=""),))
    step = LineageStep(operation="build", parameters={SETTINGS: settings_json(settings)})
    with PoolWriter(path, header=header, images=images) as writer:
        writer.extend(make_batches(1, 1, classes=3, images=images))
        writer.commit(lineage=(step,))
