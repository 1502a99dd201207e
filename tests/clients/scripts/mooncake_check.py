"""Moves memory within one process with Mooncake's transfer engine, asked to use a device by RDMA."""
import ctypes
import sys

from mooncake.engine import TransferEngine

SIZE = 1 << 20

engine = TransferEngine()
assert engine.initialize("127.0.0.1:0", "P2PHANDSHAKE", "rdma", sys.argv[1]) == 0, "initialize"
memory = engine.allocate_managed_buffer(2 * SIZE)
data = bytes((k * 7 + k // 256) & 255 for k in range(SIZE))
ctypes.memmove(memory, data, SIZE)
ctypes.memset(memory + SIZE, 0, SIZE)
peer = f"127.0.0.1:{engine.get_rpc_port()}"
assert engine.transfer_sync_write(peer, memory, memory + SIZE, SIZE) == 0, "write"
assert ctypes.string_at(memory + SIZE, SIZE) == data, "what was written differs"
print("written through Mooncake: ok", flush=True)
