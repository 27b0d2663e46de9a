"""eddy and a real etcd, commands that are timed, and what a script prints."""

import argparse
import base64
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

QUOTA = str(32 << 30)


def rss_mb(pid, field="VmRSS"):
    return int(re.search(rf"{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


class Timed:
    """A command that has ended: how long it took, and the most memory that it held."""

    def __init__(self, argv):
        begin = time.monotonic()
        self.mb = self.own_mb = 0.0
        with tempfile.TemporaryFile() as out:
            child = subprocess.Popen([str(word) for word in argv], stdout=out, stderr=subprocess.STDOUT)
            # Not `ru_maxrss`, which begins at what this process holds.
            while child.poll() is None:
                self.look(child.pid)
                time.sleep(0.005)
            out.seek(0)
            self.said = out.read().decode(errors="replace")
        self.seconds = time.monotonic() - begin
        if child.returncode:
            raise AssertionError(f"{argv[0]} {argv[1]}: {self.said[-800:]}")

    def look(self, pid):
        try:
            self.mb, self.own_mb = rss_mb(pid, "VmHWM"), max(self.own_mb, rss_mb(pid, "RssAnon"))
        except (OSError, TypeError):
            pass  # It has just ended.

    def __str__(self):
        return f"{self.seconds:.1f} s, {self.mb:,.0f} MB at most ({self.own_mb:,.0f} MB of its own)"


def free_urls(count):
    """Addresses of this machine that nobody listens at now."""
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [f"http://127.0.0.1:{one.getsockname()[1]}" for one in bound]


class Server:
    """eddy or etcd on a data dir; `cluster` has the names and peer addresses of all members, `member` names this one."""

    def __init__(self, name, binary, data, member="default", cluster=None):
        self.name, self.binary, self.data, self.member, self.cluster = name, binary, data, member, cluster

    def launch(self):
        """Starts it, and does not wait until it answers."""
        client, alone = free_urls(2)
        cluster = self.cluster or {self.member: alone}
        peer = cluster[self.member]
        self.url, self.begin = client, time.monotonic()
        argv = [
            self.binary, "--name", self.member, "--data-dir", self.data, "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", ",".join(f"{name}={url}" for name, url in cluster.items()),
            "--quota-backend-bytes", QUOTA, "--log-level", "error",
        ]  # fmt: skip
        self.log = open(f"{self.data}.log", "a")
        self.child = subprocess.Popen([str(word) for word in argv], stdout=self.log, stderr=self.log)

    def ready(self):
        """Waits until it answers."""
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                    if b'"true"' in answer.read():
                        break
            except (urllib.error.URLError, OSError):
                pass
            if self.child.poll() is not None or time.monotonic() - self.begin > 300:
                raise AssertionError(f"{self.name} does not start: {Path(self.log.name).read_text()[-2000:]}")
            time.sleep(0.02)
        self.start_seconds = time.monotonic() - self.begin

    def start(self):
        self.launch()
        self.ready()
        return self

    def metric(self, name):
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        values = [float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name]
        if not values:
            raise AssertionError(f"{self.name} has no metric {name}")
        return sum(values)

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(120)
        self.log.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def call(self, path, body):
        request = urllib.request.Request(f"{self.url}/v3/{path}", data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()

    def compact(self):
        """Compacts all that was replaced, and waits for it."""
        revision = json.loads(self.call("kv/range", {"key": "AA=="}))["header"]["revision"]
        self.call("kv/compaction", {"revision": revision, "physical": True})

    def defragment(self):
        """Has eddy write a checkpoint, or etcd its database, and waits for it."""
        self.call("maintenance/defragment", {})

    def keys(self):
        """A hash over all keys with all their numbers, and how many there are."""
        total, count, start = hashlib.sha256(), 0, "AA=="
        while True:
            answer = json.loads(self.call("kv/range", {"key": start, "range_end": "AA==", "limit": 10000}))
            kvs = answer.get("kvs", [])
            for kv in kvs:
                total.update(json.dumps(kv, sort_keys=True).encode())
            count += len(kvs)
            if not answer.get("more"):
                return total.hexdigest(), count
            start = behind(kvs[-1]["key"])


def behind(last):
    """The key behind one, both in base64."""
    return base64.b64encode(base64.b64decode(last) + b"\0").decode()


def arguments(text):
    """A parser with what all scripts take."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("eddy", type=Path)
    home = os.environ.get("XDG_CACHE_HOME") or f"{Path.home()}/.cache"
    parser.add_argument("--peers", default=os.environ.get("EDDY_PEERS") or f"{home}/eddy/peers", help="where tools/peers/build put the programs")
    parser.add_argument("--dir", help="where data dirs go (default: the temporary directory)")
    return parser


def filling(peers, server, keys, size):
    """etcd's load generator, started: it puts so many keys, one after the other, with values of so many bytes."""
    argv = [
        peers / "benchmark", f"--endpoints={server.url}", "--conns=20", "--clients=200", "put", "--sequential-keys",
        "--key-size=32", f"--key-space-size={keys}", f"--total={keys}", f"--val-size={size}",
    ]  # fmt: skip
    return subprocess.Popen([str(word) for word in argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def puts(peers, server, total, *more, rate=0, clients=8, keys=10_000):
    """Puts of 256 bytes by etcd's load generator: how many per second, p50 and p99 in milliseconds."""
    said = Timed([
        peers / "benchmark", f"--endpoints={server.url}", f"--conns={clients}", f"--clients={clients}", *more, "put", "--key-size=32",
        f"--rate={rate}", f"--total={total}", f"--key-space-size={keys}", "--val-size=256",
    ]).said  # fmt: skip
    if "Error distribution" in said:
        raise AssertionError(said[-800:])
    done = float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1])
    return done, *(float(re.search(rf"{q}% in ([\d.]+) secs", said)[1]) * 1000 for q in ("50", "99"))
