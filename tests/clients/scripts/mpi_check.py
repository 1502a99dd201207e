"""Checks MPI from Python: messages of many sizes, collectives, one-sided. Rank 0 says when all is well."""
from array import array

from mpi4py import MPI

SIZES = [0, 1, 63, 64, 4095, 4096, 8192, 9000, 65536, 262144, 1 << 20, 4 << 20]

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size


def pattern(sender, size):
    """Bytes that tell who sent them, and that none is out of its place."""
    block = bytes((sender * 31 + k * 7 + k // 256) & 255 for k in range(4096 + sender))
    return (block * (size // len(block) + 1))[:size]


def ring(size):
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    got = bytearray(size)
    comm.Sendrecv(pattern(rank, size), right, 5, got, left, 5)
    assert got == pattern(left, size), f"{size} bytes from {left}"


def many():
    """Small messages, all under way at once, told apart by their tags."""
    count = 200
    boxes = [bytearray(24) for _ in range(count)]
    left = (rank - 1) % ranks
    requests = [comm.Irecv(box, left, tag) for tag, box in enumerate(boxes)]
    out = [bytes([tag & 255]) * 24 for tag in range(count)]
    requests += [comm.Isend(out[tag], (rank + 1) % ranks, tag) for tag in range(count)]
    MPI.Request.Waitall(requests)
    assert all(box == bytes([tag & 255]) * 24 for tag, box in enumerate(boxes))


def collectives():
    assert comm.allreduce(rank) == ranks * (ranks - 1) // 2
    assert comm.bcast(pattern(0, 100000) if rank == 0 else None) == pattern(0, 100000)
    for peer, got in enumerate(comm.alltoall([pattern(rank * ranks + peer, 20000) for peer in range(ranks)])):
        assert got == pattern(peer * ranks + rank, 20000), f"alltoall from {peer}"
    mine = array("d", [rank + k for k in range(50000)])
    total = array("d", bytes(8 * len(mine)))
    comm.Allreduce(mine, total, MPI.SUM)
    assert all(total[k] == ranks * k + ranks * (ranks - 1) // 2 for k in range(0, len(total), 997))
    comm.Barrier()


def one_sided():
    size = 100000
    window = MPI.Win.Allocate(size * ranks, 1, comm=comm)
    memory = memoryview(window.tomemory())
    mine = pattern(rank, size)
    window.Fence()
    for peer in range(ranks):
        window.Put(mine, peer, rank * size)
    window.Fence()
    for peer in range(ranks):
        assert memory[peer * size : (peer + 1) * size] == pattern(peer, size), f"put by {peer}"
    got = bytearray(size)
    window.Get(got, (rank + 1) % ranks, rank * size)
    window.Fence()
    assert got == pattern(rank, size)
    window.Free()
    counter = MPI.Win.Allocate(8, 8, comm=comm)
    memoryview(counter.tomemory())[:8] = bytes(8)
    comm.Barrier()
    one = array("q", [1])
    for _ in range(20):
        counter.Lock(0)
        counter.Accumulate(one, 0, op=MPI.SUM)
        counter.Unlock(0)
    comm.Barrier()
    if rank == 0:
        counter.Lock(0)
        value = int.from_bytes(memoryview(counter.tomemory())[:8], "little")
        counter.Unlock(0)
        assert value == 20 * ranks, f"the counter is {value}"
    counter.Free()


for size in SIZES:
    ring(size)
many()
collectives()
one_sided()
comm.Barrier()
if rank == 0:
    print("all ranks: ok", flush=True)
