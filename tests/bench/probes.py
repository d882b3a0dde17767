"""The clients and the database of probes.sh.

steady PORT PATH CONNECTIONS SECONDS   one request every 20 ms on each connection, by the clock: what wrk cannot show, as
                                       a closed loop waits with the node. Prints: requests that were due, those that
                                       were answered in time to send the next, stalls (those that took over 200 ms),
                                       connections that had one, the 99th percentile and the longest wait of an answer
                                       since its request was due, both in ms
loop PORT PATH CLIENTS PAUSE           CLIENTS that ask on a new connection each time, as a kubelet does, PAUSE seconds
                                       apart, until ended
database                               takes connections and never answers. Prints its port, then at each change:
                                       connections so far, open ones, the most that were open
"""

import asyncio
import socket
import sys
import threading
import time

EVERY = 0.02
STALL = 0.2


async def steady(port, path, connections, seconds):
    request = f"GET {path} HTTP/1.1\r\nhost: node\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    start = loop.time() + 0.1
    took, waited, stalled = [], [], set()

    async def connection(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        due = start + EVERY * number / connections
        # By both clocks: a connection that lags must not go on for ever.
        while max(due, loop.time()) < start + seconds:
            await asyncio.sleep(due - loop.time())
            sent = loop.time()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            done = loop.time()
            took.append(done - sent)
            waited.append(done - due)
            if done - sent > STALL:
                stalled.add(number)
            due += EVERY
        writer.close()

    await asyncio.gather(*(connection(number) for number in range(connections)))
    stalls = sum(time > STALL for time in took)
    waited.sort()
    p99 = waited[int(len(waited) * 0.99)]
    print(round(seconds / EVERY) * connections, len(took), stalls, len(stalled), f"{p99 * 1000:.1f} {waited[-1] * 1000:.1f}")


def loop(port, path, clients, pause):
    # No HTTP library: what it costs to ask would be taken for what it costs to be asked.
    request = f"GET {path} HTTP/1.0\r\nhost: node\r\n\r\n".encode()

    def client():
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                    connection.sendall(request)
                    while connection.recv(4096):
                        pass
            except OSError as error:
                print(f"{path}: {error}", file=sys.stderr)
            time.sleep(pause)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    threads[0].join()


async def database():
    counts = {"all": 0, "open": 0, "most": 0}

    def tell():
        print(counts["all"], counts["open"], counts["most"], flush=True)

    async def hold(reader, writer):
        counts["all"] += 1
        counts["open"] += 1
        counts["most"] = max(counts["most"], counts["open"])
        tell()
        try:
            while await reader.read(4096):
                pass
        except OSError:
            pass
        counts["open"] -= 1
        tell()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    tell()
    await server.serve_forever()


match sys.argv[1:]:
    case ["steady", port, path, connections, seconds]:
        asyncio.run(steady(int(port), path, int(connections), float(seconds)))
    case ["loop", port, path, clients, pause]:
        loop(int(port), path, int(clients), float(pause))
    case ["database"]:
        asyncio.run(database())
    case _:
        sys.exit(__doc__)
