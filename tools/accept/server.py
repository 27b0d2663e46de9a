"""One replica, a kube-apiserver on it, and ways to ask both."""

import base64
import json
import ssl
import sys
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sites"))

from lab import Pki, Program, ports  # noqa: E402

PREFIX = "/registry/"
# Also what the table's services are given.
SERVICES = "10.0.0.0/16,fd00::/108"


class Refused(Exception):
    """What an API server said no to."""

    def __init__(self, code, message):
        super().__init__(f"{code} {message}")
        self.code, self.message = code, message


class Server:
    def __init__(self, eddy, peers, folder, storage):
        self.folder = folder
        self.client, peer, self.secure = ports(3)
        pki = Pki(folder / "pki")
        self.context = pki.context()
        self.context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        here, pki = f"http://127.0.0.1:{self.client}", pki.folder
        self.eddy = Program("eddy", [
            eddy, "--data-dir", folder / "data", "--listen-client-urls", here, "--advertise-client-urls", here,
            "--listen-peer-urls", f"http://127.0.0.1:{peer}",
        ], folder / "eddy.log")  # fmt: skip
        self.apiserver = Program("apiserver", [
            peers / "kube-apiserver", f"--etcd-servers={here}", f"--storage-media-type={storage}",
            "--bind-address=127.0.0.1", f"--secure-port={self.secure}", f"--client-ca-file={pki}/ca.crt",
            f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key", f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=AlwaysAllow", "--allow-privileged=true", "--disable-admission-plugins=ServiceAccount",
            "--shutdown-delay-duration=0s", "--enable-priority-and-fairness=false", "--profiling=false",
        ], folder / "apiserver.log")  # fmt: skip
        self.connection = self.store = None

    def start(self):
        self.eddy.start()
        self.apiserver.start()
        deadline = time.monotonic() + 120
        while True:
            try:
                self.ask("GET", "/readyz", text=True)
                self.ask("GET", "/api/v1/namespaces/default")
                break
            except (OSError, HTTPException, Refused) as error:
                if time.monotonic() > deadline or not self.apiserver.running():
                    raise AssertionError(f"kube-apiserver is not ready: {error}") from error
                time.sleep(0.3)
        self.kinds = self.discover()

    def stop(self):
        self.apiserver.stop()
        self.eddy.stop()

    # -------------------------------------------------------------- the API server

    def ask(self, method, path, body=None, kind="application/json", text=False):
        if self.connection is None:
            self.connection = HTTPSConnection("127.0.0.1", self.secure, context=self.context, timeout=60)
        headers = {"Content-Type": kind, "Accept": "application/json"}
        try:
            self.connection.request(method, path, None if body is None else json.dumps(body, separators=(",", ":")), headers)
            answer = self.connection.getresponse()
            said = answer.read()
        except (OSError, HTTPException):
            self.connection.close()
            self.connection = None
            raise
        if answer.status >= 300:
            try:
                said = json.loads(said)["message"]
            except (ValueError, KeyError):
                said = said.decode(errors="replace")
            raise Refused(answer.status, said)
        return said.decode() if text else json.loads(said)

    def discover(self):
        """Of each API version and kind: the path of its list by namespace, and its subresources."""
        paths = ["/api/v1"]
        for group in self.ask("GET", "/apis")["groups"]:
            paths += [f"/apis/{version['groupVersion']}" for version in group["versions"]]
        kinds, parts = {}, {}
        for path in paths:
            for resource in self.ask("GET", path)["resources"]:
                name, _, part = resource["name"].partition("/")
                if part:
                    parts.setdefault((path, name), set()).add(part)
                elif "create" in resource["verbs"]:
                    inside = "/namespaces/default" if resource["namespaced"] else ""
                    version = path.removeprefix("/apis/").removeprefix("/api/")
                    kinds[version, resource["kind"]] = (f"{path}{inside}/{name}", (path, name))
        return {kind: (path, parts.get(key, set())) for kind, (path, key) in kinds.items()}

    # -------------------------------------------------------------- the store

    def _store(self, path, body):
        if self.store is None:
            self.store = HTTPConnection("127.0.0.1", self.client, timeout=60)
        self.store.request("POST", path, json.dumps(body))
        answer = self.store.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise AssertionError(f"{path}: {answer.status} {said[:300]!r}")
        return json.loads(said)

    def stored(self, **of):
        """Keys and values under the prefix."""
        start, end = (base64.b64encode(text.encode()).decode() for text in (PREFIX, PREFIX[:-1] + "0"))
        found = self._store("/v3/kv/range", {"key": start, "range_end": end, **of}).get("kvs", [])
        return [(base64.b64decode(kv["key"]).decode(), base64.b64decode(kv.get("value", ""))) for kv in found]

    def written_at(self, revision):
        """The key and value that were written at that revision. A controller may have written the same key since."""
        (one,) = self.stored(revision=revision, min_mod_revision=revision, max_mod_revision=revision)
        return one

    def value(self, key):
        kvs = self._store("/v3/kv/range", {"key": base64.b64encode(key.encode()).decode()}).get("kvs", [])
        return base64.b64decode(kvs[0]["value"]) if kvs else None

    def put(self, key, value):
        """Writes past the API server, as replicas do that learn of a merge. Tells the revision."""
        request = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value).decode()}
        return self._store("/v3/kv/put", request)["header"]["revision"]

    def delete(self, key):
        self._store("/v3/kv/deleterange", {"key": base64.b64encode(key.encode()).decode()})
