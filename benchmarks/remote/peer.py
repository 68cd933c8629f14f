"""MosaicML Streaming on the same labels, server and latency, run by an interpreter that has it.

One sample is one label batch, float16 [128, 1000] as bytes, as the original programs' files are. Written as
a program of its own because Streaming is best kept in an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np

from lpld_labels.pool.reader import PoolReader

_PATIENCE = 300
WRITE = """
import sys
import numpy as np
from streaming import MDSWriter
source, out = sys.argv[1:]
labels = np.load(source, mmap_mode="r")
with MDSWriter(out=out, columns={"labels": "bytes"}) as writer:
    for batch in labels:
        writer.write({"labels": batch.tobytes()})
"""
READ = """
import json, sys, time
import numpy as np
import torch
from streaming import StreamingDataset
remote, local = sys.argv[1:]
seconds, counts = [], []
begin = time.perf_counter()
data = StreamingDataset(remote=remote, local=local, shuffle=True, batch_size=1, predownload=1024)
for _ in range(2):
    count = 0
    for sample in data:
        labels = torch.from_numpy(np.frombuffer(sample["labels"], np.float16).reshape(-1, 1000).copy())
        count += len(labels) > 0
    counts.append(count)
    seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
print(json.dumps({"batches": counts, "seconds": seconds}))
"""


def write(python: str, pool: PoolReader, work: Path, out: Path) -> None:
    """Write a pool's labels as Streaming's shards to a folder."""
    source = work / "labels.npy"
    first = pool.labels_at(0)
    rows = int(pool.header.batch_size)
    labels = np.lib.format.open_memmap(
        source, mode="w+", dtype=first.dtype, shape=(len(pool), rows, pool.classes)
    )
    for number in range(len(pool)):
        found = pool.labels_at(number)
        labels[number, : len(found)] = found
    labels.flush()
    subprocess.run([python, "-c", WRITE, source, out], check=True)
    source.unlink()


def read(python: str, address: str, local: Path, endpoint: str, *, batches: int) -> list[float]:
    """Play two epochs; return the seconds of each. batches: how many there are."""
    environment = {**os.environ, "S3_ENDPOINT_URL": endpoint}
    done = subprocess.run(
        [python, "-c", READ, address, local],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    if found["batches"] != [batches, batches]:
        raise RuntimeError(f"MosaicML Streaming gave {found['batches']} of {batches} batches")
    seconds: list[float] = found["seconds"]
    return seconds
