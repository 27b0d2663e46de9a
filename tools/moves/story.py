"""The story of a cluster that moves from etcd to eddy, lives a day there, and moves to another etcd."""

import json
import signal
import subprocess
import time

import look
import workload
from lab import Pki, Site
from load import Load
from store import RESTLESS, Etcd, Mover, Store, changed, different, lives
from words import Report, Stop
from workload import NS

NODES = 10
# Writes of the load per second while a copy follows: forty times what ten idle nodes write.
RATE = 100
# Objects that are written by themselves or by the load: they are compared in the stores, but are no sign of a life.
WRITTEN = (f"configmaps {NS}/busy-", "componentstatuses ", "nodes ", "endpoints default/kubernetes", "endpointslices default/kubernetes")
# Kinds of which no object may be written while nobody asks for it: here a controller would restart a life.
WORK = ("pods", "deployments", "replicasets", "statefulsets", "daemonsets", "jobs", "cronjobs", "services/specs", "example.org/widgets")


class Moves:
    def __init__(self, eddy, peers, folder, changes):
        self.report, self.folder, self.peers, self.eddy_bin, self.changes = Report(), folder, peers, eddy, changes
        self.check = self.report.check
        self.site = Site("moved", 1, folder, Pki(folder / "pki"), eddy, peers)
        self.site.nodes = [f"moved-{n}" for n in range(NODES)]
        config = self.site.folder / "kwok.yaml"
        config.write_text(config.read_text() + (workload.HERE / "kwok.yaml").read_text())
        self.first, self.last = Etcd("etcd-before", folder, peers), Etcd("etcd-after", folder, peers)
        self.store = Store(f"http://127.0.0.1:{self.site.client}", peers)
        self.movers, self.loads, self.figures = [], [], []

    def must(self, name, look_at, within=0):
        if not self.check(name, look_at, within):
            raise Stop(name)

    def tell(self, text):
        self.figures.append(text)
        print(f"     {text}", flush=True)

    def stop(self):
        for load in self.loads:
            load.wanted = False
        for program in [m.program for m in self.movers] + self.site.programs() + [self.first.program, self.last.program]:
            program.stop(signal.SIGKILL)

    # -------------------------------------------------------------- words

    def create(self, *items):
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})
        return lambda: self.site.kubectl("create", "-f", "-", stdin=text) and None

    def kubectl(self, *args):
        return lambda: self.site.kubectl("-n", NS, *args) and None

    def items(self, path):
        return self.site.get(path)["items"]

    def settled(self):
        """Every controller has done what its objects ask for."""
        bad = []
        for kind in ("deployments", "statefulsets", "daemonsets"):
            for item in self.items(f"/apis/apps/v1/namespaces/{NS}/{kind}"):
                status, wanted = item["status"], item["spec"].get("replicas", NODES)
                ready = status.get("numberReady" if kind == "daemonsets" else "readyReplicas", 0)
                pods = status.get("currentNumberScheduled" if kind == "daemonsets" else "replicas", 0)
                if (ready, pods, status.get("observedGeneration")) != (wanted, wanted, item["metadata"]["generation"]):
                    bad.append(f"{item['metadata']['name']}: {ready} ready, {pods} there, want {wanted}")
        for item in self.items(f"/apis/batch/v1/namespaces/{NS}/jobs"):
            if item["status"].get("succeeded") != item["spec"]["completions"]:
                bad.append(f"job {item['metadata']['name']}: {item['status']}")
        leaving = [p["metadata"]["name"] for p in self.items(f"/api/v1/namespaces/{NS}/pods") if p["metadata"].get("deletionTimestamp")]
        return bad[:4] or leaving[:4]

    def nodes_ready(self):
        conditions = [c for n in self.items("/api/v1/nodes") for c in n.get("status", {}).get("conditions", [])]
        ready = [c for c in conditions if c["type"] == "Ready" and c["status"] == "True"]
        return None if len(ready) == NODES else f"{len(ready)} ready"

    def lives(self):
        return lives(self.site, self.paths, WRITTEN)

    def load(self, total=None, per_second=None):
        self.loads.append(Load(self.site, NS, total, per_second))
        return self.loads[-1]

    def tell_writes(self, load):
        writes, seconds = load.stop()
        self.check("the load was taken", lambda: None if writes > 100 else f"{writes} writes, {load.refused} refused")
        self.tell(f"{writes} writes of the load in {seconds:.0f} s")

    def wait_for_apiserver(self):
        """Like a client that asks until it is answered."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                connection = self.site.connect(timeout=5)
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise AssertionError("kube-apiserver is not ready")

    def away(self, between):
        """Stops kube-apiserver, does what is between, starts it on the client port that this tells; how long it was away, and how
        long what was between took."""
        start = time.monotonic()
        self.site.apiserver.stop()
        stopped = time.monotonic()
        port = between()
        done = time.monotonic()
        self.site.start_apiserver(port)
        self.wait_for_apiserver()
        return time.monotonic() - start, done - stopped

    def quiet_since(self, store, revision):
        """What was written since a revision although nobody asked for it."""
        written = {key: kind for key, kind in store.since(revision).items() if not key.startswith(RESTLESS)}
        bad = [f"{kind} {key}" for key, kind in sorted(written.items()) if kind != "PUT" or key.split("/registry/")[-1].startswith(WORK)]
        return bad[:5]

    # -------------------------------------------------------------- chapters

    def populate(self):
        self.first.program.start()
        self.must("etcd runs", Store(self.first.url, self.peers).healthy, 30)
        self.site.start_apiserver(self.first.client)
        self.must("kube-apiserver is ready on it", self.site.ready, 180)
        self.site.controllers.start()
        self.site.scheduler.start()
        labels = lambda node: {"site": "moved", "kubernetes.io/hostname": node}
        nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": n, "labels": labels(n)}} for n in self.site.nodes]
        self.must("nodes are created", self.create(*nodes), 30)
        self.site.kwok.start()
        self.must(f"{NODES} nodes are ready", self.nodes_ready, 120)
        self.must("a namespace", lambda: self.site.kubectl("create", "namespace", NS) and None, 30)
        self.must("its service account", self.kubectl("get", "serviceaccount", "default"), 60)
        self.must("objects of every kind are created", self.create(workload.definition(), *workload.populated(), *Load.objects(NS)))
        self.must("custom resources are created", self.create(*workload.widgets()), 30)
        self.must("all pods run, all jobs are done", self.settled, 240)
        self.paths = look.listable(self.site)
        before = self.lives()
        pause, _ = self.away(lambda: self.first.client)
        self.tell(f"kube-apiserver is away for {pause:.1f} s when it is only restarted")
        time.sleep(20)
        self.must("all settles after that", self.settled, 120)
        self.check("and no life began anew", lambda: changed(before, self.lives()))
        self.beginning = before

    def in_(self):
        """From etcd to eddy."""
        site, etcd = self.site, Store(self.first.url, self.peers)
        load = self.load(per_second=RATE)
        peer = f"http://127.0.0.1:{site.relay}"
        data = site.folder / "data"
        start = time.monotonic()
        mover = Mover("import", [
            self.eddy_bin, "import", "--endpoints", self.first.url, "--data-dir", data, "--name", site.name,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"{site.name}={peer}",
        ], self.folder)  # fmt: skip
        self.movers.append(mover)
        self.must("the import is equal while writes go on", mover.equal, 120)
        self.tell(f"the import was equal after {time.monotonic() - start:.1f} s")
        time.sleep(10)
        self.tell_writes(load)
        before = self.lives()

        def between():
            self.must("the import ends in order", mover.stop)
            site.start_eddy(f"{site.name}={peer}")
            self.must("eddy serves", self.store.healthy, 30)
            self.moved_at = etcd.revision()
            return site.client

        pause, moving = self.away(between)
        self.tell(f"kube-apiserver was away for {pause:.1f} s while it moved to eddy, of which {moving:.1f} s are the move")
        self.after_a_move(self.store, etcd, self.moved_at, before)

    def after_a_move(self, now, before, revision, living):
        held = before.keys(revision)
        self.check(f"all {len(held)} keys are the same at revision {revision}", lambda: different(held, now.keys(revision)))
        self.check("the nodes are ready", self.nodes_ready, 60)
        time.sleep(30)
        self.check("no object began anew in half a minute after the move", lambda: changed(living, self.lives()))
        self.check("and no controller wrote to one", lambda: self.quiet_since(now, revision))

    def day(self):
        """Changes at eddy: many small ones, and one of each kind that people make."""
        load = self.load(self.changes)
        kubectl, create, check = self.kubectl, self.create, self.check
        check("a Deployment is scaled up", kubectl("scale", "deployment", "web-0", "--replicas=8"))
        check("one gets a new image", kubectl("set", "image", "deployment/web-1", "c=example.org/app:v2"))
        check("one is deleted", kubectl("delete", "deployment", "web-2", "--wait=false"))
        check("more are created", create(*[workload.deployment(f"new-{n}", 2) for n in range(5)]))
        check("a StatefulSet is scaled down", kubectl("scale", "statefulset", "set-0", "--replicas=1"))
        check("another one up", kubectl("scale", "statefulset", "set-1", "--replicas=4"))
        check("Jobs are created", create(*[workload.job(f"later-{n}") for n in range(3)]))
        check("a Job is deleted", kubectl("delete", "job", "job-0"))
        check("a custom resource is changed", kubectl("patch", "widget", "widget-1", "--type=merge", "-p", '{"spec": {"size": 77}}'))
        check("one is deleted", kubectl("delete", "widget", "widget-2"))
        check("config maps are deleted", kubectl("delete", "configmap", *[f"map-{n}" for n in range(50)]))
        check("others are made", create(*[workload.config_map(f"fresh-{n}", "y") for n in range(50)]))
        check("a namespace comes", lambda: self.site.kubectl("create", "namespace", "short") and None)
        check("and goes with what is in it", lambda: self.site.kubectl("delete", "namespace", "short", "--timeout=60s") and None)
        check("a node is labelled", lambda: self.site.kubectl("label", "node", self.site.nodes[0], "day=two") and None)
        check(f"{self.changes} writes of leases and config maps go on beside all that", load.finished, 60 + self.changes / 20)
        self.tell_writes(load)
        check("all pods run, all jobs are done", self.settled, 180)
        check("what nobody touched lives on", self.untouched)

    def untouched(self):
        """Of what was there at first, all but what was changed by hand."""
        touched = ("web-", "set-0", "set-1", "job-0", "widget-1", "widget-2", "map-", "moved-")
        is_touched = lambda name: name.split("/")[1].startswith(touched) or "/short" in name
        now = self.lives()
        keep = {name: life for name, life in self.beginning.items() if not is_touched(name)}
        return changed(keep, {name: now.get(name) for name in keep})

    def out(self):
        """From eddy to another etcd."""
        file = self.folder / "out.db"
        load = self.load(per_second=RATE)
        start = time.monotonic()
        self.must("eddy's backup is taken", lambda: self.store.ctl("snapshot", "save", file) and None)
        etcdutl = [str(self.peers / "etcdutl"), "snapshot", "restore", str(file), "--data-dir", str(self.last.data)]
        etcdutl += self.founding()
        self.must("etcdutl restores it", lambda: subprocess.run(etcdutl, check=True, capture_output=True) and None)
        self.last.program.start()
        etcd = Store(self.last.url, self.peers)
        self.must("etcd runs on it", etcd.healthy, 30)
        mover = Mover("export", [self.eddy_bin, "export", "--endpoints", self.store.url, "--to", self.last.url], self.folder)
        self.movers.append(mover)
        self.must("the export is equal while writes go on", mover.equal, 300)
        self.tell(f"the export was equal {time.monotonic() - start:.1f} s after the backup began")
        time.sleep(10)
        self.tell_writes(load)
        before = self.lives()

        def between():
            self.must("the export ends in order", mover.stop)
            self.moved_at = self.store.revision()
            return self.last.client

        pause, moving = self.away(between)
        self.tell(f"kube-apiserver was away for {pause:.1f} s while it moved to etcd, of which {moving:.1f} s are the move")
        self.after_a_move(etcd, self.store, self.moved_at, before)
        self.must("eddy stops", lambda: self.site.eddy.stop())
        self.check("a Deployment is scaled at etcd", self.kubectl("scale", "deployment", "web-0", "--replicas=2"))
        self.check("another is deleted", self.kubectl("delete", "deployment", "web-3"))
        self.check("all pods run", self.settled, 120)
        self.check("what nobody touched has lived all the time", self.untouched)

    def founding(self):
        """What etcdutl must be told as etcd is told it."""
        argv = list(map(str, self.last.program.argv))
        return [a for n in ("--initial-advertise-peer-urls", "--initial-cluster") for a in (n, argv[argv.index(n) + 1])]
