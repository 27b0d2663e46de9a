"""What the chapters of the story are told with: checks with patience, and questions to a site."""

import json
import signal
import subprocess
import time

import look
from lab import Network, Pki, Site

NS = "lab"


class Report:
    def __init__(self):
        self.passed = self.failed = 0
        self.start = time.monotonic()

    def check(self, name, look_at, within=0):
        """Passes when `look_at` raises nothing and says nothing bad (None, or something empty), at last after so many
        seconds."""
        deadline = time.monotonic() + within
        while True:
            try:
                bad = look_at()
            except (AssertionError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
                bad = str(error) or repr(error)
            if not bad:
                break
            if time.monotonic() >= deadline:
                break
            time.sleep(0.5)
        took = time.monotonic() - self.start
        if bad:
            self.failed += 1
            print(f"FAIL {took:4.0f}s  {name}: {str(bad)[:1500]}", flush=True)
        else:
            self.passed += 1
            print(f"ok   {took:4.0f}s  {name}", flush=True)
        return not bad


class Stop(Exception):
    """There is no point in going on."""


class Sites:
    """The three sites, and what can be said of them."""

    def __init__(self, eddy, peers, folder):
        self.report = Report()
        self.network = Network()
        self.folder = folder
        self.watches = []
        self.controllers = []
        pki = Pki(folder / "pki")
        self.sites = [Site(name, i + 1, folder, pki, eddy, peers) for i, name in enumerate(("east", "west", "north"))]
        self.east, self.west, self.north = self.sites

    def check(self, name, look_at, within=0):
        """Of the first that fails, what the apiservers show is kept: they are gone when the report is made."""
        good = self.report.check(name, look_at, within)
        kept = self.folder / "objects.json"
        if not good and not kept.exists():
            kept.write_text(json.dumps({site.name: self.workloads(site) for site in self.sites}, indent=1))
        return good

    def workloads(self, site):
        """The pods and what owns them, as the site's apiserver shows them."""
        try:
            paths = ("/api/v1/{}/pods", "/apis/apps/v1/{}/replicasets", "/apis/apps/v1/{}/deployments")
            return [site.get(path.format(f"namespaces/{NS}"))["items"] for path in paths]
        except (AssertionError, OSError, ValueError) as error:
            return repr(error)

    def must(self, name, look_at, within=0):
        if not self.check(name, look_at, within):
            raise Stop(name)

    def stop_kubernetes(self):
        """At once: what they know is in the replicas."""
        for site in self.sites:
            if site.resync:
                site.resync.wanted = False
        for controller in self.controllers:
            controller.wanted = False
        for program in [p for site in self.sites for p in site.programs()] + self.watches:
            if program.name != "eddy":
                program.stop(signal.SIGKILL)

    def stop(self):
        """Ends all processes."""
        self.stop_kubernetes()
        for site in self.sites:
            if site.eddy:
                site.eddy.stop()

    # -------------------------------------------------------------- small words

    def everywhere(self, look_at):
        """The first thing that is bad at some site."""
        return lambda: next((f"{s.name}: {bad}" for s in self.sites if (bad := look_at(s))), None)

    def converged(self):
        statuses = [site.status() for site in self.sites]
        hashes = {s["state_hash"] for s in statuses}
        vectors = {json.dumps(sorted(s["vector"], key=str)) for s in statuses}
        alarms = [a for s in statuses for a in s["alarms"]]
        different = [p["first_difference"] for s in statuses for p in s["peers"] if p["state"] == "different"]
        # Something is always being renewed, so vectors are seldom the same at one moment: the replicas compare themselves.
        unknown = [p["name"] for s in statuses for p in s["peers"] if not p["connected"]]
        if alarms or different or unknown:
            return f"alarms {alarms}, different {different}, not connected {unknown}"
        return None if len(vectors) > 1 or len(hashes) == 1 else f"hashes {hashes}"

    def at_rest(self):
        """When nobody writes any more: one vector, one hash, and nothing left to be settled."""
        statuses = [site.status() for site in self.sites]
        vectors = {json.dumps(sorted(s["vector"], key=str)) for s in statuses}
        hashes = {s["state_hash"] for s in statuses}
        unsettled = [s["unsettled_keys"] for s in statuses]
        states = {p["state"] for s in statuses for p in s["peers"]}
        if len(vectors) > 1 or len(hashes) > 1 or any(unsettled) or states != {"equal"}:
            return f"{len(vectors)} vectors, {len(hashes)} hashes, unsettled {unsettled}, {states}"

    def same_objects(self):
        return "; ".join(look.differences(self.sites, self.paths)[:4])

    def leader(self, site, component):
        """Who holds the component's lease, and when it was renewed, as seen at `site`."""
        lease = site.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{component}")
        return lease["spec"]["holderIdentity"], lease["spec"]["renewTime"]

    def leaders_agreed(self):
        for component in ("kube-controller-manager", "kube-scheduler"):
            holders = {self.leader(site, component)[0] for site in self.sites}
            if len(holders) != 1 or not next(iter(holders)):
                return f"{component}: {holders}"

    def renewed(self):
        """Every lease is renewed by who holds it."""
        components = ("kube-controller-manager", "kube-scheduler")
        before = [self.leader(self.east, component) for component in components]
        time.sleep(3)
        after = [self.leader(self.east, component) for component in components]
        return [c for c, b, a in zip(components, before, after) if a[0] != b[0] or a[1] <= b[1]]

    def deployment(self, name, replicas, site=None, tolerate=None, image="v1", nodes=None):
        """Its JSON; on the nodes of that site, or on nodes with those labels."""
        spec = {"containers": [{"name": "c", "image": f"example.org/app:{image}"}]}
        if site or nodes:
            spec["nodeSelector"] = nodes or {"site": site.name}
        if tolerate is not None:
            short = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": tolerate}
            spec["tolerations"] = [{"key": f"node.kubernetes.io/{why}", **short} for why in ("unreachable", "not-ready")]
        labels = {"app": name}
        return json.dumps({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": NS, "labels": labels},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels},
                     "template": {"metadata": {"labels": labels}, "spec": spec}},
        })  # fmt: skip

    def create(self, site, text):
        return lambda: site.kubectl("create", "-f", "-", stdin=text) and None

    def do(self, site, *args):
        return lambda: site.kubectl("-n", NS, *args) and None

    def pods(self, site, app):
        items = site.get(f"/api/v1/namespaces/{NS}/pods?labelSelector=app%3D{app}")["items"]
        return [p for p in items if not p["metadata"].get("deletionTimestamp")]

    def runs(self, app, count):
        """Exactly so many pods, all running, and the deployment says so."""

        def look_at(site):
            pods = self.pods(site, app)
            running = [p for p in pods if p["status"].get("phase") == "Running"]
            deployment = site.get(f"/apis/apps/v1/namespaces/{NS}/deployments/{app}")
            status, meta = deployment.get("status", {}), deployment["metadata"]
            if len(pods) != count or len(running) != count:
                return f"{app}: {len(pods)} pods, {len(running)} running, want {count}"
            if status.get("availableReplicas") != count or status.get("observedGeneration") != meta["generation"]:
                counts = {name: status.get(name) for name in ("observedGeneration", "replicas", "readyReplicas", "availableReplicas")}
                conditions = [(c["type"], c["status"], c["lastUpdateTime"]) for c in status.get("conditions", [])]
                told = f"{app}: generation {meta['generation']}, {counts}, {conditions}"
                return f"{told}; pods {[look.readiness(p) for p in pods]}; {self.replica_sets(site, app)}"

        return look_at

    def replica_sets(self, site, app):
        """What its replica sets say of themselves."""
        items = site.get(f"/apis/apps/v1/namespaces/{NS}/replicasets?labelSelector=app%3D{app}")["items"]
        return [{"name": s["metadata"]["name"], "wanted": s["spec"]["replicas"], **s["status"]} for s in items]

    def gone(self, what, name):
        def look_at(site):
            return site.kubectl("-n", NS, "get", what, name, "--ignore-not-found", "-o", "name")

        return look_at

    def exits(self):
        return {f"{site.name} {p.name}": p.exits for site in self.sites for p in (site.controllers, site.scheduler)}
