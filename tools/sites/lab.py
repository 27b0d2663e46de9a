"""Three sites on one machine: the programs, their certificates, and the network between the replicas."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPSConnection
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Shortened, so that a partition is soon a long one: a node is unreachable after this many seconds without its lease.
NODE_GRACE = 20
# How the apiservers store objects.
STORAGE = "application/json" if os.environ.get("STORAGE") == "json" else "application/vnd.kubernetes.protobuf"
# What the README recommends for several sites: practically for ever.
TOLERATION = 315360000


def ports(count):
    """Free TCP ports, all different."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    numbers = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return numbers


class Network:
    """TCP relays in front of the replicas' peer ports, that can be cut and healed all at once."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.open = True
        self.writers = set()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def relay(self, port, target):
        async def accept(reader, writer):
            if not self.open:
                writer.close()
                return
            try:
                there, back = await asyncio.open_connection("127.0.0.1", target)
            except OSError:
                writer.close()
                return
            if not self.open:
                writer.close()
                back.close()
                return
            pair = {writer, back}
            self.writers |= pair
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
            self.writers -= pair

        start = asyncio.start_server(accept, "127.0.0.1", port)
        asyncio.run_coroutine_threadsafe(start, self.loop).result()

    async def _copy(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    def cut(self):
        def close():
            self.open = False
            for writer in self.writers:
                writer.transport.abort()

        self.loop.call_soon_threadsafe(close)

    def heal(self):
        self.open = True


class Program:
    """A process of ours, started again when it ends by itself if it is one that may."""

    def __init__(self, name, argv, log, host=None, again=False):
        # A host name of its own, as on a machine of its own: components put it into the names of their leases.
        if host and os.geteuid() == 0:
            argv = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host] + argv
        self.name, self.argv, self.log, self.again = name, [str(arg) for arg in argv], log, again
        self.exits = 0
        self.wanted = False
        self.child = None

    def start(self):
        self.wanted = True
        self._spawn()
        if self.again:
            threading.Thread(target=self._supervise, daemon=True).start()
        return self

    def _spawn(self):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(
                self.argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.log.parent
            )

    def _supervise(self):
        while self.wanted:
            self.child.wait()
            if self.wanted:
                self.exits += 1
                time.sleep(1)
                if self.wanted:
                    self._spawn()

    def running(self):
        return self.child is not None and self.child.poll() is None

    def stop(self, how=signal.SIGTERM):
        self.wanted = False
        if self.running():
            self.child.send_signal(how)
            try:
                self.child.wait(20)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


class Pki:
    """What all sites share: one CA, one service account key."""

    USERS = {
        "admin": "/O=system:masters/CN=admin",
        "controller-manager": "/CN=system:kube-controller-manager",
        "scheduler": "/CN=system:kube-scheduler",
    }

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self._openssl("req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=sites -keyout ca.key -out ca.crt")
        names = "DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1"
        usage = "extendedKeyUsage=serverAuth,clientAuth"
        self.certificate("apiserver", "/CN=kube-apiserver", f"subjectAltName={names}\n{usage}")
        for user, subject in self.USERS.items():
            self.certificate(user, subject, "extendedKeyUsage=clientAuth")
        self._openssl("genrsa -out sa.key 2048")
        self._openssl("rsa -in sa.key -pubout -out sa.pub")

    def _openssl(self, command):
        subprocess.run(["openssl"] + command.split(), cwd=self.folder, check=True, capture_output=True, timeout=60)

    def certificate(self, name, subject, extensions):
        (self.folder / f"{name}.ext").write_text(extensions)
        self._openssl(f"req -newkey rsa:2048 -nodes -subj {subject} -keyout {name}.key -out {name}.csr")
        self._openssl(
            f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out {name}.crt -extfile {name}.ext"
        )

    def context(self):
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        context.load_cert_chain(self.folder / "admin.crt", self.folder / "admin.key")
        return context


class Site:
    """A replica, a control plane on it, and two fake nodes."""

    def __init__(self, name, number, folder, pki, eddy, peers):
        self.name, self.folder, self.pki, self.bin = name, folder / name, pki, peers
        self.eddy_bin = eddy
        self.folder.mkdir()
        self.client, self.peer, self.relay, self.secure, kcm, scheduler, kwok = ports(7)
        # From a range for documentation; what the `kubernetes` Service is to name at this site.
        self.address = f"192.0.2.{number}"
        # How the addresses of its pods begin.
        self.network = f"10.{100 + number}."
        self.nodes = [f"{name}-{i}" for i in (1, 2)]
        for user in Pki.USERS:
            self._kubeconfig(user)
        config = lambda user: self.folder / f"{user}.kubeconfig"
        program = lambda name, argv, again=False: Program(name, argv, self.folder / f"{name}.log", self.name, again)
        kubeconfigs = lambda user: [
            f"--{flag}={config(user)}" for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        ]
        common = ["--bind-address=127.0.0.1", "--kube-api-qps=100", "--kube-api-burst=200"]
        self.controllers = program("controller-manager", [
            peers / "kube-controller-manager", *common, f"--secure-port={kcm}", f"--cert-dir={self.folder}/kcm",
            *kubeconfigs("controller-manager"),
            f"--service-account-private-key-file={pki.folder}/sa.key", f"--root-ca-file={pki.folder}/ca.crt",
            "--use-service-account-credentials=true", f"--node-monitor-grace-period={NODE_GRACE}s",
            "--node-monitor-period=2s", "--node-eviction-rate=10", "--concurrent-gc-syncs=4",
        ], again=True)  # fmt: skip
        self.scheduler = program("scheduler", [
            peers / "kube-scheduler", *common, f"--secure-port={scheduler}", f"--cert-dir={self.folder}/scheduler",
            *kubeconfigs("scheduler"),
        ], again=True)  # fmt: skip
        (self.folder / "kwok.yaml").write_text((HERE / "kwok.yaml").read_text().replace("NETWORK", self.network))
        self.kwok = program("kwok", [
            peers / "kwok", f"--config={self.folder}/kwok.yaml", f"--kubeconfig={config('admin')}",
            f"--manage-nodes-with-label-selector=site={name}", "--node-ip=127.0.0.1", f"--cidr={self.network}0.0/16",
            "--node-lease-duration-seconds=20", f"--server-address=127.0.0.1:{kwok}",
        ])  # fmt: skip
        self.apiserver = None
        # What only this site's apiserver is told.
        self.own_flags = []
        self.resync = None
        self.eddy = None

    def programs(self):
        return [p for p in (self.kwok, self.scheduler, self.controllers, self.apiserver, self.eddy) if p]

    def start_eddy(self, cluster, *flags):
        here = f"http://127.0.0.1:{self.client}"
        self.eddy = Program("eddy", [
            self.eddy_bin, "--name", self.name, "--data-dir", self.folder / "data",
            "--listen-client-urls", here, "--advertise-client-urls", here,
            "--listen-peer-urls", f"http://127.0.0.1:{self.peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{self.relay}", "--initial-cluster", cluster, *flags,
        ], self.folder / "eddy.log").start()  # fmt: skip

    def start_apiserver(self, client=None):
        """On its own replica, unless told on whose."""
        pki = self.pki.folder
        self.apiserver = Program("apiserver", [
            self.bin / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{client or self.client}",
            f"--storage-media-type={STORAGE}", "--etcd-compaction-interval=60s",
            "--bind-address=127.0.0.1", f"--secure-port={self.secure}", f"--advertise-address={self.address}",
            f"--client-ca-file={pki}/ca.crt", f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key", "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC", "--shutdown-delay-duration=0s",
            f"--default-unreachable-toleration-seconds={TOLERATION}",
            f"--default-not-ready-toleration-seconds={TOLERATION}", *self.own_flags,
        ], self.folder / "apiserver.log", self.name).start()  # fmt: skip

    def _kubeconfig(self, user):
        pki = self.pki.folder
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {
                "server": f"https://127.0.0.1:{self.secure}", "certificate-authority": f"{pki}/ca.crt",
            }}],
            "users": [{"name": "u", "user": {
                "client-certificate": f"{pki}/{user}.crt", "client-key": f"{pki}/{user}.key",
            }}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        (self.folder / f"{user}.kubeconfig").write_text(json.dumps(config))

    # -------------------------------------------------------------- asking it

    def kubectl_argv(self, *args):
        folder = self.folder
        return [str(self.bin / "kubectl"), f"--kubeconfig={folder}/admin.kubeconfig", f"--cache-dir={folder}/cache", *args]

    def kubectl(self, *args, stdin=None, timeout=90):
        """Its output; fails with what it said."""
        done = subprocess.run(
            self.kubectl_argv(*args), input=stdin, capture_output=True, text=True, timeout=timeout, cwd=self.folder
        )
        if done.returncode:
            raise AssertionError(f"{self.name}: kubectl {' '.join(args)}: {done.stderr.strip()[-400:]}")
        return done.stdout

    def connect(self, timeout=30):
        return HTTPSConnection("127.0.0.1", self.secure, context=self.pki.context(), timeout=timeout)

    def get(self, path):
        """The JSON that the apiserver answers."""
        return self.ask("GET", path)

    def ask(self, method, path, body=None, kind="application/json"):
        connection = self.connect()
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": kind} if text else {})
            answer = connection.getresponse()
            said = answer.read()
        except OSError as error:
            raise AssertionError(f"{self.name}: {method} {path}: {error}") from error
        finally:
            connection.close()
        if answer.status not in (200, 201):
            raise AssertionError(f"{self.name}: {method} {path}: {answer.status} {said[:200]!r}")
        return json.loads(said)

    def ready(self):
        self.kubectl("get", "--raw", "/readyz", timeout=20)

    def _eddy(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.client}{path}", timeout=10) as answer:
                return answer.read()
        except (urllib.error.URLError, OSError) as error:
            raise AssertionError(f"{self.name}: {path}: {error}") from error

    def status(self):
        return json.loads(self._eddy("/eddy/v1/status"))

    def memory(self):
        """What the replica has resident, MB."""
        metrics = self._eddy("/metrics").decode().splitlines()
        return int(next(float(line.split()[-1]) for line in metrics if line.startswith("process_resident_memory_bytes")) / 2**20)

    def merges(self):
        return json.loads(self._eddy("/eddy/v1/merges"))["merges"]

    def merge_count(self):
        lines = self._eddy("/metrics").decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("eddy_merges_total"))

    def eddy_says(self, command, *args):
        """What a subcommand says, or why it fails."""
        argv = [self.eddy_bin, *command.split(), "--endpoints", f"http://127.0.0.1:{self.client}", *args]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise AssertionError(f"{self.name}: eddy {command}: {done.stderr.strip()[-400:]}")
        return done.stdout

    def leap(self):
        self.eddy_says("leap")
