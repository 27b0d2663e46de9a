"""The stores: a real etcd, what eddy and etcd hold at a revision, and the programs that move one into the other."""

import base64
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from lab import Program, ports
from words import Stop

# Keys that are renewed or made all the time, whoever runs: they say nothing of an object's life.
RESTLESS = ("/registry/events/", "/registry/leases/", "/registry/masterleases/", "/registry/peerserverleases/")


class Etcd:
    """A real etcd on a data dir."""

    def __init__(self, name, folder, peers):
        self.client, peer = ports(2)
        self.url = f"http://127.0.0.1:{self.client}"
        self.data = folder / f"{name}.data"
        peer_url = f"http://127.0.0.1:{peer}"
        self.program = Program(name, [
            peers / "etcd", "--data-dir", self.data, "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
            "--initial-cluster", f"default={peer_url}", "--max-txn-ops", "100000", "--max-request-bytes", "33554432",
        ], folder / f"{name}.log")  # fmt: skip


class Mover:
    """`eddy import` or `eddy export`, and what it says."""

    def __init__(self, name, argv, folder):
        self.log = folder / f"{name}.log"
        self.program = Program(name, argv, self.log).start()

    def said(self):
        return self.log.read_text() if self.log.exists() else ""

    def equal(self):
        """Nothing once it is equal; what is bad until then."""
        if "equal at revision" in self.said():
            return None
        if not self.program.running():
            raise Stop(f"{self.log.stem} ended: {self.said()[-500:]}")
        return f"not equal yet: {self.said()[-300:]}"

    def stop(self):
        """Nothing when it ended in order."""
        self.program.stop()
        return None if self.program.child.returncode == 0 else self.said()[-500:]


class Store:
    """What clients see of a store."""

    def __init__(self, url, peers):
        self.url, self.peers = url, peers

    def ctl(self, *args, timeout=120):
        argv = [str(self.peers / "etcdctl"), f"--endpoints={self.url}", *map(str, args)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise AssertionError(f"etcdctl {' '.join(map(str, args))}: {done.stderr[-400:]}")
        return done.stdout

    def healthy(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return None if b'"true"' in answer.read() else "not healthy"
        except (urllib.error.URLError, OSError) as error:
            return str(error)

    def revision(self):
        return json.loads(self.ctl("endpoint", "status", "-w", "json"))[0]["Status"]["header"]["revision"]

    def keys(self, revision):
        """Every key at a revision, with its value and all its numbers."""
        answer = json.loads(self.ctl("get", "", "--prefix", f"--rev={revision}", "-w", "json"))
        text = lambda kv, name: base64.b64decode(kv.get(name, "")).decode(errors="surrogateescape")
        numbers = ("create_revision", "mod_revision", "version", "lease")
        return {text(kv, "key"): (text(kv, "value"), *(kv.get(n, 0) for n in numbers)) for kv in answer["kvs"]}

    def since(self, revision):
        """The keys that were written after a revision, each with its first kind of event: CREATE, PUT or DELETE."""
        argv = [str(self.peers / "etcdctl"), f"--endpoints={self.url}", "watch", "", "--prefix", f"--rev={revision + 1}", "-w", "json"]
        with tempfile.TemporaryFile("w+") as output:
            watch = subprocess.Popen(argv, stdout=output, stderr=subprocess.DEVNULL)
            time.sleep(3)
            watch.terminate()
            watch.wait(30)
            output.seek(0)
            # The last line may be half of one: it is newer than what is asked for.
            lines = output.read().split("\n")[:-1]
        found = {}
        for line in lines:
            for event in json.loads(line).get("Events") or []:
                key = base64.b64decode(event["kv"]["key"]).decode(errors="surrogateescape")
                created = event["kv"].get("version") == 1
                kind = "DELETE" if event.get("type") in (1, "DELETE") else "CREATE" if created else "PUT"
                found.setdefault(key, kind)
        return found


def different(one, other):
    """The first keys that are not the same, and how many."""
    keys = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    return f"{len(keys)} of {len(one)} keys: {[(k, one.get(k, ())[1:], other.get(k, ())[1:]) for k in keys[:3]]}" if keys else None


def lives(site, paths, restless=()):
    """Of every object what tells its life: uid, generation, and of a pod its node and its containers' starts."""
    found = {}
    for path, resource in paths.items():
        for item in site.get(path).get("items") or []:
            meta = item["metadata"]
            name = f"{resource} {meta.get('namespace', '')}/{meta['name']}"
            if name.startswith(tuple(restless)):
                continue
            life = [meta["uid"], meta.get("generation"), meta.get("deletionTimestamp")]
            if resource == "pods":
                containers = item["status"].get("containerStatuses", [])
                life += [item["spec"].get("nodeName"), item["status"].get("phase"), item["status"].get("startTime")]
                life += [(c["restartCount"], json.dumps(c["state"], sort_keys=True)) for c in containers]
            found[name] = life
    return found


def changed(before, after):
    """Objects that are gone, new, or began anew."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return f"{len(names)} of {len(before)}: {[(n, before.get(n), after.get(n)) for n in names[:3]]}" if names else None
