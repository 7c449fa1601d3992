"""Compiled code of several threads or processes at once: `threads.py WHICH [wrong] [watched]`."""

import asyncio
import contextlib
import multiprocessing
import queue
import random
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import evidence
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZES = (2, 3, 2, 5, 7, 3)


def wrong(gm, inputs):
    for node in gm.graph.nodes:
        if node.target is torch.sin:
            node.target = torch.cos
    gm.recompile()
    return gm.forward


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.down(torch.sin(self.up(x)))


random.seed(0), np.random.seed(0), torch.manual_seed(0)
torch.set_num_threads(1)
net = Net().eval()
fast = torch.compile(net, backend=wrong if "wrong" in sys.argv else "eager")


def call(size):
    """Eager modules around the compiled one."""
    with torch.no_grad():
        return round(nn.functional.relu(fast(nn.Identity()(torch.full((size, 4), 0.25)))).sum().item(), 4)


def pool():
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(call, SIZES))


def to_thread():
    async def main():
        return await asyncio.gather(*(asyncio.to_thread(call, size) for size in SIZES))

    return asyncio.run(main())


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        text = str(call(int(self.path[1:]))).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


def asked(port):
    """A client for each size, all at once."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with ThreadPoolExecutor(len(SIZES)) as clients:
        return list(clients.map(lambda size: opener.open(f"http://127.0.0.1:{port}/{size}").read().decode(), SIZES))


def server():
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    found = asked(serving.server_port)
    serving.shutdown()
    serving.server_close()
    return found


def asgi():
    """The same from endpoints that uvicorn calls, in threads of its own."""

    async def application(scope, receive, send):
        if scope["type"] == "http":
            text = str(await asyncio.to_thread(call, int(scope["path"][1:]))).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": text})

    return served(application)


def served(application):
    import uvicorn

    serving = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=serving.run)
    thread.start()
    while not serving.started:
        time.sleep(0.01)
    found = asked(serving.servers[0].sockets[0].getsockname()[1])
    serving.should_exit = True
    thread.join()
    return found


def fastapi():
    """The same from an endpoint of FastAPI's that is a plain function, for which it has threads."""
    import fastapi

    application = fastapi.FastAPI()
    application.get("/{size}")(endpoint)
    return served(application)


def endpoint(size: int):
    return call(size)


class Compiled(Dataset):
    def __len__(self):
        return len(SIZES)

    def __getitem__(self, number):
        return call(SIZES[number])


def loader():
    """Workers that compile, made by a fork."""
    found = DataLoader(Compiled(), num_workers=2, batch_size=None, multiprocessing_context="fork")
    return [*found, call(2)]


def processes():
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return workers.map(call, SIZES)


def daemon():
    """A thread that compiles for ever, until the process ends."""
    told = queue.Queue(2)  # the end of the process does not find it inside torch, which would abort

    def work():
        size = 0
        while True:
            size = size % 7 + 1
            told.put(call(size))

    threading.Thread(target=work, daemon=True).start()
    return [told.get() for _ in range(3)] + [call(2)]


if __name__ == "__main__":
    with evidence.watched() if "watched" in sys.argv else contextlib.nullcontext():
        print(sys.argv[1], globals()[sys.argv[1]](), flush=True)
