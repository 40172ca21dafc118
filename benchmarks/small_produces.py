"""Requests a second that the broker answers: `python -m benchmarks.small_produces [FOLDER...]`.

Produces of one record of 100 bytes, over one connection with one request in flight, and over four
with 32 each; also the broker's processor time for a request, which a busy machine changes less.
With folders of other checkouts (by `git worktree`), their brokers take turns with this one's.
"""

import asyncio
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kafka.record.memory_records import MemoryRecordsBuilder

from pyspark_kafkalog.protocol.frames import encode_request_header
from pyspark_kafkalog.protocol.produce import (
    ProducePartition,
    ProduceRequest,
    encode_produce_request,
)

_ROUNDS = 9
_WORK = {"1 connection, 1 in flight": (1, 1, 6_000), "4 connections, 32 in flight": (4, 32, 30_000)}
_TOPIC = "small"
_METADATA = struct.pack(">hhih", 3, 4, 1, -1) + struct.pack(">ih5s?", 1, 5, b"small", True)


def _frame() -> bytes:
    builder = MemoryRecordsBuilder(2, 0, 1 << 20)
    builder.append(1_700_000_000_000, None, b"x" * 100)
    builder.close()
    part = ProducePartition(_TOPIC, 0, bytes(builder.buffer()))
    body = encode_produce_request(ProduceRequest(9, None, -1, 1000, [part]))
    frame = encode_request_header(0, 9, 1, "bench") + b"".join(bytes(each) for each in body)
    return struct.pack(">i", len(frame)) + frame


async def _answer(reader: asyncio.StreamReader) -> None:
    (size_bytes,) = struct.unpack(">i", await reader.readexactly(4))
    await reader.readexactly(size_bytes)


async def _connection(port: int, frame: bytes, in_flight: int, count: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(frame * in_flight)
    for number in range(count):
        await _answer(reader)
        if number < count - in_flight:
            writer.write(frame)
    writer.close()


async def _rate(port: int, connections: int, in_flight: int, count: int) -> float:
    frame = _frame()
    each = count // connections
    began = time.perf_counter()
    await asyncio.gather(*(_connection(port, frame, in_flight, each) for _ in range(connections)))
    return each * connections / (time.perf_counter() - began)


async def _prepare(port: int) -> None:
    """Creates the topic."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(struct.pack(">i", len(_METADATA)) + _METADATA)
    await _answer(reader)
    writer.close()


def _cpu_s(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _measure(folder: str) -> dict[str, tuple[float, float]]:
    """By work: requests a second, and microseconds of processor time for each."""
    with tempfile.TemporaryDirectory() as data_dir:
        broker = subprocess.Popen(
            [sys.executable, "-m", "broker", "--data-dir", data_dir, "--listen", "127.0.0.1:0"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([folder, *_INHERITED])},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert broker.stdout is not None
        try:
            port = int(broker.stdout.readline().rpartition(b":")[2])
            asyncio.run(_prepare(port))
            asyncio.run(_rate(port, 1, 1, 500))
            found = {}
            for name, work in _WORK.items():
                before_s = _cpu_s(broker.pid)
                rate = asyncio.run(_rate(port, *work))
                found[name] = rate, (_cpu_s(broker.pid) - before_s) / work[2] * 1e6
            return found
        finally:
            broker.terminate()
            broker.wait()
            broker.stdout.close()


_HERE = str(Path(__file__).parents[1])
_INHERITED = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != _HERE]


def main() -> None:
    folders = [_HERE, *sys.argv[1:]]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for round_number in range(_ROUNDS):
        for folder in folders if round_number % 2 else reversed(folders):
            for name, figures in _measure(folder).items():
                found.setdefault((name, folder), []).append(figures)
    for name in _WORK:
        for folder in folders:
            rates, costs = zip(*found[name, folder], strict=True)
            print(
                f"{name:28} {statistics.median(rates):9,.0f}/s "
                f"({min(rates):,.0f} to {max(rates):,.0f})  {statistics.median(costs):6.1f} us "
                f"({min(costs):.1f} to {max(costs):.1f})  {folder}"
            )


if __name__ == "__main__":
    main()
