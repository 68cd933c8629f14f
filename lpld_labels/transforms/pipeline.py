"""Write a new pool from its `PoolPlan`. Build, prune, encode, merge, import and plan end with this step.

An executor writes the missing shards, then the pool is published. After an interruption, the same command
resumes with the missing shards. After publication, the command finds the pool and does nothing.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from lpld_labels.errors import PoolConflictError, PoolFormatError
from lpld_labels.exec.job import Executor, Job, Progress, say_reused
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.manifest import CodecEntry, LineageStep, Manifest, PoolHeader
from lpld_labels.format.schema import MANIFEST_FILE, Views
from lpld_labels.io.addresses import Location, is_address
from lpld_labels.io.storage import refuse_links
from lpld_labels.pool.own_files import not_a_pool, require_own_files
from lpld_labels.pool.plan import PoolPlan, Shard, ShardWriter, pool_identity, require_alike
from lpld_labels.pool.publish import publish
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.unfinished import Unfinished, as_json, finish, partial_directory, unfinished
from lpld_labels.transforms.outputs import OVERWRITE_HINT, pool_path, require_apart

log = logging.getLogger(__name__)

SETTINGS = "settings"  # Step parameter with the settings; others are results, such as `kept_batches`.


def settings_json(settings: Any) -> dict[str, Any]:
    """Return a settings dataclass as JSON values."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings, enc_hook=str))
    return document


def lineage_step(operation: str, parent_digest: str | None, settings: Any, **results: Any) -> LineageStep:
    """Return a lineage step. settings: the command's dataclass. results: other parameters."""
    parameters = {SETTINGS: settings_json(settings), **results}
    return LineageStep(operation=operation, parent_digest=parent_digest, parameters=parameters)


def run_plan(
    plan: PoolPlan,
    *,
    executor: Executor = ONE_PROCESS,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write the missing parts of a plan's pool. overwrite: replace a different pool or unfinished work."""
    manifest = run_part(plan, (0, 1), executor=executor, overwrite=overwrite, progress=progress)
    return cast("Manifest", manifest)  # A single part is always the last one.


def run_part(
    plan: PoolPlan,
    part: tuple[int, int],
    *,
    executor: Executor = ONE_PROCESS,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest | None:
    """Write part (i, n): all shards k with k % n == i. The part that finishes last publishes the pool.

    Return the manifest, or None if other parts are not finished.
    """
    with unfinished(plan.out, shared=part[1] > 1) as work:
        found = _published(plan, overwrite=overwrite)
        if found is not None:
            log.info("%s: finished before, nothing was left to do", plan.out)
            return found
        cut = [len(shard.items) for shard in plan.shards]
        plan = plan.recut(work.begin(plan.identity(), cut, overwrite=overwrite))
        try:
            return _run(work, plan, part, executor, overwrite, progress)
        except Exception:
            # A command that fails before its first shard leaves nothing behind.
            if part[1] == 1 and not work.numbers():
                work.delete()
            raise


def _run(
    work: Unfinished,
    plan: PoolPlan,
    part: tuple[int, int],
    executor: Executor,
    overwrite: bool,
    progress: Progress | None,
) -> Manifest | None:
    ours = [number for number in range(len(plan.shards)) if number % part[1] == part[0]]
    there = set(work.numbers())
    records = work.records([number for number in ours if number in there], checked=True)
    # Retry shards with skipped inputs: these may have been repaired, or skipping may no longer be allowed.
    records = {number: record for number, record in records.items() if not record.skipped}
    missing = [number for number in ours if number not in records]
    job = Job(
        start=partial(_started, plan.writer(work.directory)),
        tasks=((number, plan.shards[number]) for number in missing),
        name=_name,
        total=sum(plan.shards[number].batches for number in ours),
        done=sum(plan.shards[number].batches for number in records),
        where=plan.out,
    )
    say_reused(plan.out, job.done, job.total, "batches")
    if missing:
        executor.run(job, progress)
    if part[1] > 1 and (not work.alone() or len(work.numbers()) < len(plan.shards)):
        return None
    others = [number for number in range(len(plan.shards)) if number not in ours]
    records |= work.records(missing, checked=False) | work.records(others, checked=True)
    if len(records) < len(plan.shards):
        raise PoolConflictError(
            "a finished shard was damaged while this command ran",
            where=work.directory,
            hint="run the same command again to rewrite this shard",
        )
    return publish(plan, work, [records[number] for number in sorted(records)], overwrite=overwrite)


def _started(writer: ShardWriter, number: int) -> ShardWriter:
    begin = getattr(writer.plan.source, "begin", None)
    return writer if begin is None else replace(writer, plan=replace(writer.plan, source=begin(number)))


def _name(task: tuple[int, Shard]) -> str:
    first, last = task[1].items[0], task[1].items[-1]
    return str(first) if first == last else f"the batches from {first} to {last}"


def _published(plan: PoolPlan, *, overwrite: bool) -> Manifest | None:
    """Return the manifest of the plan's pool, or None if missing. Refuse other pools unless `overwrite`."""
    found = manifest_there(plan.out, overwrite=overwrite)
    if found is None:
        return None
    if plan.base is not None and found == plan.base:
        with PoolReader(plan.out) as pool:
            there = pool_identity(pool.header, pool.codec, pool.images, pool.manifest.views)
        wanted = pool_identity(plan.header, plan.codec, plan.images, plan.views)
        require_alike(there, wanted, where=plan.out, problem="this is a different pool", hint=OVERWRITE_HINT)
        adds_images = plan.packed is not None and not found.files_of("packed")
        return None if plan.shards or adds_images else found
    step = plan.header.lineage[-1] if plan.header.lineage else None
    if made_by(found, step) and _same_content(found, plan):
        return found
    if not overwrite:
        raise PoolConflictError("a different pool is already here", where=plan.out, hint=OVERWRITE_HINT)
    require_own_files(plan.out)
    return None


def _same_content(found: Manifest, plan: PoolPlan) -> bool:
    """Return whether a pool matches the plan in everything that the plan determines in advance."""
    if plan.packed is not None and not found.files_of("packed"):
        return False
    if plan.content_digest not in (None, found.content_digest):
        return False
    codec = CodecEntry(name=plan.codec.name, parameters=plan.codec.parameters())
    wanted = _described(plan.header, plan.views, codec)
    same: bool = _described(found.header, found.views, found.codec) == wanted
    return same


def _described(header: PoolHeader, views: Views, codec: CodecEntry) -> Any:
    before = replace(header, lineage=header.lineage[:-1])
    return as_json({"header": asdict(before), "views": views, "codec": asdict(codec)})


def manifest_there(out: Path, *, overwrite: bool) -> Manifest | None:
    """Return the manifest at `out`; None if there is none, or if it is damaged and `overwrite` is set."""
    refuse_links([out / MANIFEST_FILE])
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    path = out / MANIFEST_FILE
    if not path.is_file():
        raise not_a_pool(out)
    try:
        return Manifest.parse(path.read_bytes(), where=str(path))
    except PoolFormatError:
        if not overwrite:
            raise
        require_own_files(out)
        return None


def made_by(found: Manifest, step: LineageStep | None) -> bool:
    """Return whether a pool's last lineage step is `step`. Parameters that only the pool has are ignored."""
    last = found.header.lineage[-1] if found.header.lineage else None
    if last is None or step is None:
        return last is step
    known = {name: last.parameters.get(name) for name in step.parameters}
    same: bool = as_json(known) == as_json(step.parameters)
    return same and (last.operation, last.parent_digest) == (step.operation, step.parent_digest)


def finished_before(out: Location, step: LineageStep) -> Manifest | None:
    """Return the manifest of the pool at `out` if it was made by `step` (see `made_by`), else None."""
    path = pool_path(out)
    if not (path / MANIFEST_FILE).is_file():
        return None
    finish(path)
    try:
        found = Manifest.parse((path / MANIFEST_FILE).read_bytes(), where=str(path / MANIFEST_FILE))
    except PoolFormatError:
        return None
    return found if made_by(found, step) else None


def require_output(
    out: Location, *inputs: Location, overwrite: bool, step: LineageStep | None = None
) -> None:
    """Refuse an output that overlaps an input or was not made by `step`. Addresses are checked on writing."""
    require_apart(out, *inputs)
    if is_address(out):
        return
    path = pool_path(out)
    require_apart(partial_directory(path), *inputs)
    found = manifest_there(path, overwrite=overwrite)
    if overwrite:
        require_own_files(path)
    elif found is not None and not made_by(found, step):
        raise PoolConflictError("a different pool is already here", where=path, hint=OVERWRITE_HINT)
