#!/usr/bin/env python3
"""Records what a real etcd answers to HashKV: hashkv.py PATH/TO/etcd > hashkv.txt

One command per line, `~` for an empty string:
    put KEY VALUE LEASE | del KEY END | txn STEP[;STEP...] with STEP as put or del | grant ID TTL | revoke ID
    compact REVISION | restart | hash REVISION CRC COMPACT_REVISION
`hash` lines are etcd's answers; everything else is what was asked. The revision of the newest compaction is asked for
only after a restart: until then etcd answers it from a cache that was filled while it compacted.
"""
import base64, json, random, socket, subprocess, sys, tempfile, time, urllib.error, urllib.request

rng = random.Random(3707)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Etcd:
    def __init__(self, binary, folder):
        client, peer = free_port(), free_port()
        self.url = f"http://127.0.0.1:{client}"
        peer = f"http://127.0.0.1:{peer}"
        self.process = subprocess.Popen(
            [binary, "--data-dir", folder, "--name", "n", "--listen-client-urls", self.url, "--advertise-client-urls",
             self.url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster",
             f"n={peer}", "--log-level", "error"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                self.call("/v3/kv/range", {"key": b64("x")})
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        raise SystemExit("etcd did not start")

    def call(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def stop(self):
        self.process.terminate()
        self.process.wait()


def b64(text):
    return base64.b64encode(text.encode()).decode()


def step(words):
    text = lambda word: b64("" if word == "~" else word)
    if words[0] == "put":
        return "/v3/kv/put", {"key": text(words[1]), "value": text(words[2]), "lease": words[3]}
    return "/v3/kv/deleterange", {"key": text(words[1]), "range_end": text(words[2])}


def run(etcd, line):
    words = line.split()
    if words[0] == "txn":
        names = {"/v3/kv/put": "request_put", "/v3/kv/deleterange": "request_delete_range"}
        ops = [step(part.split()) for part in line[4:].split(";")]
        return etcd.call("/v3/kv/txn", {"success": [{names[path]: body} for path, body in ops]})
    if words[0] == "grant":
        return etcd.call("/v3/lease/grant", {"ID": words[1], "TTL": words[2]})
    if words[0] == "revoke":
        return etcd.call("/v3/lease/revoke", {"ID": words[1]})
    if words[0] == "compact":
        return etcd.call("/v3/kv/compaction", {"revision": words[1], "physical": True})
    return etcd.call(*step(words))


def commands():
    key = lambda: rng.choice(["a", "b", "bb", "c", "longer/key/name"])
    put = lambda k: f"put {k} {rng.choice(['~', '1', 'two', 'x' * 200])} {rng.choice([0, 0, 0, 9, -8])}"
    yield "grant 9 3600"
    yield "grant -8 3600"
    yield from ["put a 1 0", "put b ~ 9", "put a 2 0", "del a ~", "put a 3 0", "del z ~"]
    for round in range(6):
        for _ in range(12):
            kind = rng.randrange(10)
            if kind < 5:
                yield put(key())
            elif kind < 7:
                yield f"del {key()} ~"
            elif kind < 8:
                yield f"del {key()} c"
            else:
                keys = rng.sample(["a", "b", "bb", "c", "longer/key/name"], 3)
                yield "txn " + ";".join(rng.choice([put(k), f"del {k} ~"]) for k in keys)
        # A tombstone at the compacted revision, one just below it, and neither.
        yield from [["put t 1 0", "del t ~"], ["put t 1 0", "del t ~", "put u 1 0"], ["put u 2 0"]][round % 3]
        yield "check"
        yield "compact now" if round % 2 == 0 else "compact before"
        yield "check"
    yield "revoke 9"
    yield "check"
    yield "restart"
    yield "check"
    # Nothing is kept: etcd then skips nothing that its compaction left.
    yield from ["del ! ~~", "compact before", "restart", "check", "compact now", "restart", "check"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        etcd = Etcd(sys.argv[1], folder)
        cached, compacted = set(), -1
        for line in commands():
            revision = int(etcd.call("/v3/kv/range", {"key": b64("a")})["header"]["revision"])
            if line == "check":
                for at in range(max(1, compacted), revision + 1):
                    if at not in cached:
                        hash = etcd.call("/v3/maintenance/hashkv", {"revision": at})
                        print("hash", at, hash["hash"], hash.get("compact_revision", 0))
                continue
            if line == "restart":
                print(line)
                etcd.stop()
                etcd = Etcd(sys.argv[1], folder)
                cached.clear()
                continue
            if line.startswith("compact"):
                compacted = revision - (0 if line.endswith("now") else 3)
                line = f"compact {compacted}"
                cached.add(compacted)
            print(line)
            run(etcd, line)
        etcd.stop()


main()
