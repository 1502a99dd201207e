"""Two NIXL agents: the second reads and writes memory of the first, through one backend; data is compared.

nixl_check.py BACKEND          the first, which serves
nixl_check.py BACKEND HOST     the second
"""

import socket
import struct
import sys
import time

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

PORT, SIZE, LIMIT = 18516, 1 << 20, 240


def put(link, data):
    link.sendall(struct.pack("!I", len(data)) + data)


def get(link):
    def exactly(n):
        data = b""
        while len(data) < n:
            more = link.recv(n - len(data))
            if not more:
                raise SystemExit("the other agent is gone")
            data += more
        return data

    return exactly(*struct.unpack("!I", exactly(4)))


def pattern(seed):
    return np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)


def await_true(what, done):
    end = time.monotonic() + LIMIT
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: nothing happened for {LIMIT} s")


def finish(agent, op, local, remote, name):
    transfer = agent.initialize_xfer(op, local, remote, name, b"done " + op.encode())
    state = agent.transfer(transfer)

    def done():
        state = agent.check_xfer_state(transfer)
        if state == "ERR":
            raise SystemExit(f"{op} failed")
        return state == "DONE"

    await_true(op, lambda: state == "DONE" or done())
    agent.release_xfer_handle(transfer)


def main():
    backend, *host = sys.argv[1:]
    is_client = bool(host)
    agent = nixl_agent("client" if is_client else "server", nixl_agent_config(backends=[backend]))
    memory = pattern(1 if is_client else 2)
    agent.register_memory([(memory.ctypes.data, SIZE, 0, "")], mem_type="DRAM")
    mine = agent.get_xfer_descs([(memory.ctypes.data, SIZE, 0)], mem_type="DRAM")
    if is_client:
        link = socket.create_connection((host[0], PORT))
    else:
        listener = socket.create_server(("", PORT))
        link, _ = listener.accept()
    link.settimeout(LIMIT)
    put(link, agent.get_agent_metadata())
    put(link, agent.get_serialized_descs(mine))
    name = agent.add_remote_agent(get(link)).decode()
    theirs = agent.deserialize_descs(get(link))
    if is_client:
        for round in range(10):
            finish(agent, "READ", mine, theirs, name)
            assert (memory == pattern(2 + round)).all(), "read"
            memory[:] = pattern(3 + round)
            finish(agent, "WRITE", mine, theirs, name)
        # A notification that nobody has taken yet goes with the one who sent it.
        assert get(link) == b"all is here"
        print(f"20 transfers of {SIZE} bytes through {backend}: ok")
    else:
        got = []

        def notified():
            got.extend(agent.get_new_notifs().get(name, []))
            return len(got) == 20

        await_true("notifications", notified)
        put(link, b"all is here")
        assert (memory == pattern(12)).all(), "written"


main()
