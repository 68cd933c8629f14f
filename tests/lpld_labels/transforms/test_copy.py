"""Pools that carry their images: what goes in comes out, whatever is done to the pool in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from PIL import Image

from lpld_labels import PoolReader
from lpld_labels.errors import (
    ImageMismatchError,
    InvalidArgumentError,
    PoolConflictError,
    PoolCorruptError,
    PoolWriteError,
)
from lpld_labels.format.digests import file_digest
from lpld_labels.inspect.check import check_pool
from lpld_labels.io.parquet_files import file_entry, footer_of, page_settings
from lpld_labels.pool import packing
from lpld_labels.pool.packing import Packed, PackedImages, packed_images
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.writer import PoolWriter
from lpld_labels.render.images import FolderImages, check_images, find_images
from lpld_labels.transforms.copy import merge_pools, unpack_images
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import EncodeSettings, PruneSettings
from tests import independent_reader
from tests.factories import assert_same_views, grow_pool, make_batches, make_header, make_images, write_pool
from tests.lpld_labels.loader.loader_pools import build
from tests.lpld_labels.transforms.conftest import files_below


def test_what_is_packed_is_unpacked_byte_for_byte(packed: PoolReader, folder: Path, tmp_path: Path) -> None:
    images = packed_images(packed)
    assert images is not None
    assert unpack_images(images, tmp_path / "again") == 30
    assert files_below(tmp_path / "again") == files_below(folder)
    assert unpack_images(images, tmp_path / "again") == 0


def test_packing_changes_no_label_and_no_other_file(packed: PoolReader, plain: PoolReader) -> None:
    before, after = plain.manifest, packed.manifest
    assert after.content_digest == before.content_digest
    assert after.header == before.header
    assert [entry for entry in after.files if entry.role != "packed"] == list(before.files)
    assert len(after.files_of("packed")) > 2
    assert after.components["packed"] == sum(entry.bytes for entry in after.files_of("packed"))
    for entry in after.files:
        assert file_digest(Path(packed.location, entry.path)) == entry.digest
    assert not Path(f"{packed.location}.partial").exists()


def test_our_checks_and_the_other_reader_find_it_whole(packed: PoolReader, folder: Path) -> None:
    assert check_pool(packed.location).problems == ()
    independent_reader.verify(packed.location)
    theirs = independent_reader.open_pool(packed.location)
    ours = packed_images(packed)
    assert ours is not None
    for row in (0, 17, 29):
        expected = (folder / packed.images.paths[row]).read_bytes()
        assert ours.read(row) == expected == theirs.image(row)


def test_a_folder_that_is_given_wins(packed: PoolReader, folder: Path) -> None:
    victim = folder / packed.images.paths[4]
    Image.new("RGB", (20, 20)).save(victim)
    check_images(find_images(packed))
    with pytest.raises(ImageMismatchError, match=r"image 4 has changed"):
        check_images(find_images(packed, folder))


def test_without_images_the_folder_is_asked_for(plain: PoolReader) -> None:
    with pytest.raises(InvalidArgumentError, match=r"does not carry its images.*--images"):
        find_images(plain)


def test_a_changed_image_is_not_packed(plain: PoolReader, folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(folder / plain.images.paths[7])
    with pytest.raises(ImageMismatchError, match=r"image 7 has changed"):
        merge_pools([plain], tmp_path / "out", images=find_images(plain, folder))
    with pytest.raises(Exception, match="not a label pool"):
        PoolReader(tmp_path / "out")


def test_images_of_unknown_contents_are_not_packed(plain: PoolReader, folder: Path, tmp_path: Path) -> None:
    unknown = replace(plain.images, digests=[*plain.images.digests[:3], None, *plain.images.digests[4:]])
    (tmp_path / "out").mkdir()
    with pytest.raises(ImageMismatchError, match=r"image 3 cannot be packed.*expected a digest"):
        Packed(FolderImages(folder, unknown))(tmp_path / "out", within=tmp_path)


def rewrite_first_image(pool: Path, data: bytes) -> None:
    """Put other bytes into the first packed file, with checksums and manifest as if it had been meant."""
    document = json.loads((pool / "pool.json").read_text())
    entry = next(entry for entry in document["files"] if entry["role"] == "packed")
    path = pool / entry["path"]
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["image"]["bytes"] = data
    changed = type(table).from_pylist(rows, schema=table.schema)
    pq.write_table(changed, path, compression="none", use_dictionary=False, **page_settings())
    size = path.stat().st_size
    document["components"]["packed"] += size - entry["bytes"]
    entry |= asdict(file_entry(entry["path"], "packed", size, file_digest(path), footer_of(path)))
    (pool / "pool.json").write_text(json.dumps(document))


def test_a_changed_image_inside_is_refused(packed: PoolReader, folder: Path) -> None:
    """Even where every checksum says it is right: the image table knows better."""
    rewrite_first_image(Path(packed.location), (folder / packed.images.paths[1]).read_bytes())
    with PoolReader(packed.location) as pool:
        images = packed_images(pool)
        assert images is not None
        with pytest.raises(PoolCorruptError, match=r"packed/00000000-.*class0/0000.png: image 0 is not the"):
            images.read(0)
        assert images.read(1) == (folder / packed.images.paths[1]).read_bytes()
    (problem,) = check_pool(packed.location).problems
    assert problem.file.startswith("packed/")
    assert "image 0 is not the labelled one" in problem.message


def test_a_flipped_byte_inside_is_refused(packed: PoolReader) -> None:
    path = Path(packed.location, packed.manifest.files_of("packed")[0].path)
    data = bytearray(path.read_bytes())
    data[len(data) // 8] ^= 1
    path.write_bytes(data)
    with pytest.raises(PoolCorruptError, match="packed/"):
        check_images(find_images(packed))
    assert [problem.file for problem in check_pool(packed.location).problems] == [
        packed.manifest.files_of("packed")[0].path
    ]


@pytest.mark.parametrize("kind", ["prune", "encode", "prune and encode", "merge"])
def test_pools_made_of_it_keep_the_images(kind: str, packed: PoolReader, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "merge":
        halves = []
        for number, keys in enumerate((packed.keys[::2], packed.keys[1::2])):
            half = tmp_path / f"half{number}"
            with PoolWriter(half, header=packed.header, images=packed.images) as writer:
                writer.extend(packed.iterate(keys))
                writer.commit()
            halves.append(PoolReader(half))
        merge_pools([halves[1]], tmp_path / "half1packed", images=find_images(packed))
        manifest = merge_pools([halves[0], PoolReader(tmp_path / "half1packed")], out)
    elif kind == "encode":
        manifest = encode_pool(packed, out, EncodeSettings(codec="int8")).manifest
    else:
        manifest = prune_pool(packed, out, PruneSettings(ratio=2))
    if kind == "prune and encode":
        with PoolReader(out) as pruned:
            out = tmp_path / "out2"
            manifest = encode_pool(pruned, out, EncodeSettings(codec="int8")).manifest
    assert manifest.files_of("packed") == packed.manifest.files_of("packed")
    assert check_pool(out).problems == ()
    with PoolReader(out) as pool:
        check_images(find_images(pool))


def test_a_budget_counts_the_images(folder: Path, tmp_path: Path) -> None:
    with build(tmp_path / "long", folder, epochs=60) as pool:
        merge_pools([pool], tmp_path / "long_packed", images=find_images(pool, folder))
    packed = PoolReader(tmp_path / "long_packed")
    budget = pool_bytes(packed.manifest) * 9 // 10
    manifest = prune_pool(packed, tmp_path / "out", PruneSettings(budget=budget))
    assert budget * 0.9 < pool_bytes(manifest) <= budget
    assert manifest.components["packed"] == packed.manifest.components["packed"]
    with pytest.raises(InvalidArgumentError, match="budget"):
        prune_pool(packed, tmp_path / "none", PruneSettings(budget=manifest.components["packed"]))


def test_a_pool_that_grows_keeps_its_images(packed: PoolReader, tmp_path: Path) -> None:
    out = tmp_path / "small"
    manifest = prune_pool(packed, out, PruneSettings(ratio=2))
    grown = grow_pool(out, list(packed.iterate()))
    assert grown.counts.batches > manifest.counts.batches
    assert grown.files_of("packed") == packed.manifest.files_of("packed")
    assert check_pool(out).problems == ()


# Interruptions and outputs


def test_interrupted_packing_goes_on(
    plain: PoolReader, folder: Path, packed: PoolReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    read = FolderImages.read
    asked: list[int] = []
    interrupted = True

    def failing(self: FolderImages, row: int) -> bytes:
        asked.append(row)
        if interrupted and asked.count(25) == 2:
            raise KeyboardInterrupt
        return read(self, row)

    monkeypatch.setattr(FolderImages, "read", failing)
    with pytest.raises(KeyboardInterrupt):
        merge_pools([plain], out, images=find_images(plain, folder))
    assert not out.exists()
    done = sorted((tmp_path / f"{out.name}.partial" / "pool" / "packed").iterdir())
    assert done
    before = {path.name: path.stat().st_ino for path in done}
    interrupted = False
    asked.clear()
    # One that was damaged meanwhile is written again.
    done[0].write_bytes(done[0].read_bytes()[:-1] + b"x")
    manifest = merge_pools([plain], out, images=find_images(plain, folder))
    assert manifest.dump() == packed.manifest.dump()
    after = {path.name: path.stat().st_ino for path in sorted((out / "packed").iterdir())}
    kept = [name for name, inode in before.items() if after[name] == inode]
    assert kept == [path.name for path in done[1:]]
    assert 30 < len(asked) < 60


def test_packing_again_finds_its_own_pool(plain: PoolReader, folder: Path, packed: PoolReader) -> None:
    before = Path(packed.location, "pool.json").stat().st_mtime_ns
    manifest = merge_pools([plain], packed.location, images=find_images(plain, folder))
    assert manifest == packed.manifest
    assert Path(packed.location, "pool.json").stat().st_mtime_ns == before


def test_another_pool_is_only_replaced_on_demand(plain: PoolReader, folder: Path, tmp_path: Path) -> None:
    build(tmp_path / "other", folder, seed=6).close()
    images = find_images(plain, folder)
    with pytest.raises(PoolConflictError, match="--overwrite"):
        merge_pools([plain], tmp_path / "other", images=images)
    manifest = merge_pools([plain], tmp_path / "other", images=images, overwrite=True)
    assert manifest.content_digest == plain.manifest.content_digest
    with pytest.raises(InvalidArgumentError, match="the output is the same as an input"):
        merge_pools([plain], plain.location, images=images, overwrite=True)


def test_a_full_disk_leaves_no_pool(
    plain: PoolReader, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(packing, "move", full)
        with pytest.raises(PoolWriteError, match="disk is full"):
            merge_pools([plain], tmp_path / "out", images=find_images(plain, folder))
    assert not (tmp_path / "out" / "pool.json").exists()
    merge_pools([plain], tmp_path / "out", images=find_images(plain, folder))
    assert check_pool(tmp_path / "out").problems == ()


@pytest.fixture
def images(packed: PoolReader) -> PackedImages:
    found = packed_images(packed)
    assert found is not None
    return found


def test_an_interrupted_unpack_resumes(
    images: PackedImages, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, total: int) -> None:
        if done == total // 2:
            raise KeyboardInterrupt

    out, work = tmp_path / "again", tmp_path / "again.partial"
    with pytest.raises(KeyboardInterrupt):
        unpack_images(images, out, progress=stop)
    assert not out.exists()
    half = files_below(work / "pool")
    victim = work / "pool" / min(half)
    victim.write_bytes(b"half")
    written = unpack_images(images, out)
    assert written <= len(images.table) - len(half) + 1
    assert files_below(out) == files_below(folder)
    assert not work.exists()


def test_what_is_there_is_never_replaced(images: PackedImages, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    assert unpack_images(images, out) == len(images.table)
    assert unpack_images(images, out) == 0, "the same images"
    (out / "class0" / "notes.txt").write_text("mine")
    before = files_below(out)
    with pytest.raises(PoolConflictError, match="something is already here"):
        unpack_images(images, out)
    assert files_below(out) == before
    (out / "class0" / "notes.txt").unlink()
    first = out / images.table.paths[0]
    first.write_bytes(b"retouched")
    with pytest.raises(PoolConflictError, match="something is already here"):
        unpack_images(images, out)
    assert first.read_bytes() == b"retouched"


def test_unpacking_never_follows_links_out(images: PackedImages, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    out, elsewhere = tmp_path / "again", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(KeyboardInterrupt):
        unpack_images(images, out, progress=stop)
    place = tmp_path / "again.partial" / "pool" / "class2"
    for path in sorted(place.glob("*")):
        path.unlink()
    if place.exists():
        place.rmdir()
    place.symlink_to(elsewhere)
    with pytest.raises(PoolConflictError, match="link"):
        unpack_images(images, out)
    assert not any(elsewhere.iterdir())


BATCHES = make_batches(3, 4)


@pytest.fixture
def parts(tmp_path: Path) -> list[PoolReader]:
    return [write_pool(tmp_path / f"part{number}", BATCHES[number::3]) for number in range(3)]


def test_all_batches_are_in_as_if_written_at_once(tmp_path: Path, parts: list[PoolReader]) -> None:
    done: list[tuple[int, int]] = []
    manifest = merge_pools(parts, tmp_path / "out", progress=lambda d, t: done.append((d, t)))
    assert done == [(number, 12) for number in range(1, 13)]
    assert check_pool(tmp_path / "out").whole
    with write_pool(tmp_path / "direct", BATCHES) as direct:
        assert manifest.content_digest == direct.manifest.content_digest
    with PoolReader(tmp_path / "out") as merged:
        for batch in BATCHES:
            found = merged.read(batch.key)
            assert_same_views(found, batch)
            np.testing.assert_array_equal(found.labels, batch.labels)
    (step,) = manifest.header.lineage
    assert step.operation == "merge"
    digests = [part.manifest.content_digest for part in parts]
    assert [entry["content_digest"] for entry in step.parameters["pools"]] == digests


def test_once_more_it_finds_its_own_pool(tmp_path: Path, parts: list[PoolReader]) -> None:
    first = merge_pools(parts, tmp_path / "out")
    assert merge_pools(parts, tmp_path / "out") == first
    with pytest.raises(PoolConflictError, match="already here"):
        merge_pools(parts[:2], tmp_path / "out")


def test_pools_with_a_batch_in_common(tmp_path: Path, parts: list[PoolReader]) -> None:
    with pytest.raises(PoolConflictError, match=r"two pools hold epoch 0 batch 0.*part0.*part0"):
        merge_pools([*parts, parts[0]], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("what", "field"),
    [("seed", "seed"), ("images", "images_digest"), ("codec", "codec.name"), ("teachers", "teachers")],
)
def test_pools_that_differ(tmp_path: Path, parts: list[PoolReader], what: str, field: str) -> None:
    header = make_header(seed=1) if what == "seed" else make_header()
    if what == "teachers":
        header = make_header(teachers=())
    other = write_pool(
        tmp_path / "other",
        make_batches(1, 1)[:0],
        header=header,
        images=make_images(49) if what == "images" else None,
        codec="int8" if what == "codec" else "f16",
    )
    with pytest.raises(PoolConflictError, match=rf"cannot be merged: field '{field}' differs.*same images"):
        merge_pools([parts[0], other], tmp_path / "out")


def test_on_the_command_line(tmp_path: Path, parts: list[PoolReader], cli: Callable[..., Result]) -> None:
    locations = [part.location for part in parts]
    result = cli("copy", *locations, tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (facts["batches"], len(facts["pools"])) == (12, 3)
    table = cli("copy", *locations, tmp_path / "out")
    assert facts["content_digest"] in table.stdout
    overlap = cli("copy", locations[0], locations[0], tmp_path / "twice")
    assert (overlap.exit_code, overlap.stderr.count("\n")) == (1, 1)
    assert "two pools hold" in overlap.stderr
