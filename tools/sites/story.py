"""The story of three sites: they start, are cut off, are joined again; one loses its replica."""

import json
import signal
import time

import look
from absence import Absence
from kubelets import Resync
from lab import NODE_GRACE, Program
from own import Own
from words import NS


class Story(Own, Absence):
    def start(self):
        cluster = ",".join(f"{site.name}=http://127.0.0.1:{site.relay}" for site in self.sites)
        for site in self.sites:
            self.network.relay(site.relay, site.peer)
            site.start_eddy(cluster)
        self.must("three replicas meet", self.converged, 60)
        for site in self.sites:
            site.start_apiserver()
        for site in self.sites:
            self.must(f"{site.name}: kube-apiserver, started at the same time as the others, is ready", site.ready, 180)
        for site in self.sites:
            site.controllers.start()
            site.scheduler.start()
            for node in site.nodes:
                labels = {"site": site.name, "kubernetes.io/hostname": node, "topology.kubernetes.io/zone": site.name}
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}}
                self.must(f"{site.name}: node created", self.create(site, json.dumps(node)), 30)
            site.kwok.start()
            site.resync = Resync(site)

        def nodes_ready(site):
            nodes = site.get("/api/v1/nodes")["items"]
            conditions = [c for n in nodes for c in n.get("status", {}).get("conditions", [])]
            ready = [c for c in conditions if c["type"] == "Ready" and c["status"] == "True"]
            taints = [t["key"] for n in nodes for t in n["spec"].get("taints", [])]
            return None if len(ready) == 6 and not taints else f"{len(ready)} ready, taints {taints}"

        self.nodes_ready = nodes_ready
        self.must("six nodes are ready, as seen from every site", self.everywhere(nodes_ready), 120)
        self.check("one leader each, the same for all", self.leaders_agreed, 60)
        self.paths = look.listable(self.east)
        self.check("all three apiservers show the same objects", self.same_objects, 90)
        self.check("no replica differs from another", self.converged, 30)
        self.check("each site's kubernetes Service names its own apiserver", self.everywhere(self.own_endpoint), 60)
        self.check("it is quiet: no storm", self.quiet, 90)

    def own_endpoint(self, site):
        slice_ = site.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
        addresses = [a for e in slice_["endpoints"] for a in e["addresses"]]
        return None if addresses == [site.address] else f"{addresses}, not {site.address}"

    def quiet(self):
        """Few entries and hardly any merges in ten seconds: leases are renewed, and that is all."""
        entries = lambda: sum(dot["seq"] for dot in self.east.status()["vector"])
        merges = lambda: sum(site.merge_count() for site in self.sites)
        before, merged, seconds = entries(), merges(), 10
        time.sleep(seconds)
        total = f"{entries()} entries, {merges():.0f} merges since the start"
        written, merged = (entries() - before) / seconds, (merges() - merged) / seconds
        self.calm = f"{written:.1f} entries/s, {merged:.1f} merges/s over the three; {total}"
        return None if written < 20 and merged < 2 else self.calm

    def before_the_cut(self):
        self.must("a namespace", lambda: self.east.kubectl("create", "namespace", NS) and None, 30)
        account = lambda site: site.kubectl("-n", NS, "get", "serviceaccount", "default") and None
        self.must("its service account is at every site", self.everywhere(account), 60)
        self.own_begins()
        self.check("a Deployment of 4 is created at one site", self.create(self.east, self.deployment("web", 4)))
        self.must("its pods run, as seen from every site", self.everywhere(self.runs("web", 4)), 90)
        for site in self.sites:
            text = self.deployment(f"stay-{site.name}", 2, site=site)
            self.must(f"a Deployment on the nodes of {site.name}, created at another", self.create(self.east, text))
        self.create(self.east, self.deployment("careless", 2, site=self.west, tolerate=3))()
        self.create(self.east, self.deployment("doomed", 2, site=self.east))()
        self.create(self.east, self.deployment("rolled", 2))()
        self.create(self.east, self.deployment("contested", 2, nodes={"late": "yes"}))()
        self.do(self.west, "create", "service", "clusterip", "web", "--tcp=80:80")()
        for name in ("kept", "deleted"):
            self.do(self.north, "create", "configmap", name, "--from-literal=value=1")()
        for app in [f"stay-{s.name}" for s in self.sites] + ["careless", "doomed", "rolled"]:
            self.must(f"{app} runs", self.everywhere(self.runs(app, 2)), 90)
        self.stayed = {p["metadata"]["uid"] for s in self.sites for p in self.pods(self.east, f"stay-{s.name}")}
        pending = lambda site: len(self.pods(site, "contested")) - 2
        self.must("contested has 2 pods, which fit on no node yet", self.everywhere(pending), 60)
        self.check("the endpoints of the Service web are its pods", self.everywhere(self.endpoints_fit), 60)
        pod = self.pods(self.east, "web")[0]["metadata"]["name"]
        foreign = json.dumps({"status": {"podIP": "10.99.0.1", "podIPs": [{"ip": "10.99.0.1"}]}})
        patch = self.do(self.west, "patch", "pod", pod, "--subresource=status", "--type=merge", "-p", foreign)
        self.check("a pod is given an address that is none of its node's", patch)
        self.check("and its kubelet puts that right", self.everywhere(lambda site: [p for p in self.own_addresses(site) if p[1]]), 30)
        self.own_runs()
        self.paths = look.listable(self.east)
        self.must("all the same before the cut", self.same_objects, 60)

    def lonely(self, site):
        return [peer["name"] for peer in site.status()["peers"] if peer["connected"]]

    def endpoints_fit(self, site):
        pods = sorted(pod["status"].get("podIP", "") for pod in self.pods(site, "web"))
        there = look.endpoints(site, NS, "web")
        return None if there == pods else f"endpoints {there}, pods {pods}"

    def own_addresses(self, site):
        """Every pod's address is from the network of the site on whose node it runs."""
        networks = {node: s.network for s in self.sites for node in s.nodes}
        pods = site.get(f"/api/v1/namespaces/{NS}/pods")["items"]
        placed = [(p["metadata"]["name"], p["spec"].get("nodeName"), p["status"].get("podIP", "")) for p in pods]
        return [p for p in placed if not p[1] or not p[2].startswith(networks[p[1]])]

    def alone(self):
        east, west, north = self.sites
        careless = {p["metadata"]["uid"] for p in self.pods(east, "careless")}
        self.network.cut()
        self.must("the network is cut", self.everywhere(self.lonely), 30)
        self.check("east scales web to 6", self.do(east, "scale", "deployment", "web", "--replicas=6"))
        self.check("west labels web", self.do(west, "label", "deployment", "web", "from=west"))
        self.check("north annotates web", self.do(north, "annotate", "deployment", "web", "from=north"))
        patch = '{"spec": {"minReadySeconds": 1}}'
        data = lambda key, value: json.dumps({"data": {key: value}})
        self.check("and sets another field of its spec", self.do(north, "patch", "deployment", "web", "-p", patch))
        self.check("north deletes a config map", self.do(north, "delete", "configmap", "deleted"))
        self.check("east writes it", self.do(east, "patch", "configmap", "deleted", "-p", data("value", "2")))
        self.check("west writes another", self.do(west, "patch", "configmap", "kept", "-p", data("west", "3")))
        self.check("east writes that one too", self.do(east, "patch", "configmap", "kept", "-p", data("east", "4")))
        self.check("west deletes doomed", self.do(west, "delete", "deployment", "doomed", "--wait=false"))
        self.check("while east scales it", self.do(east, "scale", "deployment", "doomed", "--replicas=4"))
        for site in (east, west):
            set_image = self.do(site, "set", "image", "deployment/rolled", f"c=example.org/app:{site.name}")
            self.check(f"{site.name} sets the image of rolled", set_image)
            label = self.do(site, "label", "node", site.nodes[0], "late=yes")
            self.check(f"{site.name} labels a node, on which contested fits", label)
        for site in self.sites:
            text = self.deployment(f"from-{site.name}", 2, site=site)
            self.check(f"{site.name} creates a Deployment", self.create(site, text))
        for site, count in ((east, 2), (west, 3)):
            text = self.deployment("same", count, site=site, image=site.name)
            self.check(f"{site.name} creates a Deployment `same`", self.create(site, text))
        self.own_apart()
        self.same_uid = east.get(f"/apis/apps/v1/namespaces/{NS}/deployments/same")["metadata"]["uid"]
        # Each site elects leaders of its own once the old ones have not renewed their leases for a while.
        for site in self.sites:
            run = self.runs(f"from-{site.name}", 2)
            self.check(f"the pods of {site.name}'s new Deployment run there", lambda: run(site), 120)
        self.check("`same` runs 2 at east", lambda: self.runs("same", 2)(east), 60)
        self.check("`same` runs 3 at west", lambda: self.runs("same", 3)(west), 60)
        for site in (east, west):
            run = self.runs("contested", 2)
            self.check(f"the two pods of contested run at {site.name}", lambda: run(site), 90)
        self.check("doomed runs 4 at east", lambda: self.runs("doomed", 4)(east), 60)
        self.check("doomed is gone at west", lambda: self.pods(west, "doomed") and "pods left", 60)

        def unreachable(site):
            nodes = site.get("/api/v1/nodes")["items"]
            taints = [(n["metadata"]["name"], t["effect"]) for n in nodes for t in n["spec"].get("taints", [])]
            tainted = {node for node, effect in taints if effect == "NoExecute"}
            others = {node for other in self.sites if other is not site for node in other.nodes}
            return None if tainted == others else f"tainted {tainted}"

        self.check("each site holds the others' nodes for unreachable", self.everywhere(unreachable), NODE_GRACE + 90)
        killed = lambda: careless & {p["metadata"]["uid"] for p in self.pods(east, "careless")}
        self.check("long enough to kill pods that tolerate it for 3 s only", killed, 60)

        def stays(site):
            uids = {p["metadata"]["uid"] for s in self.sites for p in self.pods(site, f"stay-{s.name}")}
            return None if uids == self.stayed else f"{len(self.stayed - uids)} killed, {len(uids - self.stayed)} new"

        self.stays = stays
        self.check("but no other, at any site", self.everywhere(stays))

    def together(self):
        east, west, north = self.sites
        self.exited = self.exits()
        self.network.heal()
        self.must("the replicas meet again", self.converged, 60)
        healed = time.monotonic()
        self.check("leaders agreed", self.leaders_agreed, 60)
        self.check("every node is ready again, for every site", self.everywhere(self.nodes_ready), 90)
        web = self.runs("web", 6)
        self.check("web has the 6 pods that east wanted", self.everywhere(web), 90)

        def edits(site):
            web = site.get(f"/apis/apps/v1/namespaces/{NS}/deployments/web")
            meta, spec = web["metadata"], web["spec"]
            has = (spec["replicas"], meta["labels"].get("from"), meta["annotations"].get("from"))
            has += (spec.get("minReadySeconds"),)
            return None if has == (6, "west", "north", 1) else f"{has}"

        self.check("and every site's edit of other fields", self.everywhere(edits), 30)
        data = lambda site: site.get(f"/api/v1/namespaces/{NS}/configmaps/kept")["data"]
        both = {"value": "1", "west": "3", "east": "4"}
        self.check("a config map has the keys of both", self.everywhere(lambda s: None if data(s) == both else data(s)))

        self.own_together()
        gone = self.everywhere(self.gone("configmap", "deleted"))
        self.check("what one site deleted is gone, written elsewhere or not", gone, 30)
        self.check("doomed is gone everywhere", self.everywhere(self.gone("deployment", "doomed")), 30)
        uid = lambda site: site.get(f"/apis/apps/v1/namespaces/{NS}/deployments/same")["metadata"]["uid"]
        first = self.everywhere(lambda s: None if uid(s) == self.same_uid else uid(s))
        self.check("`same` is the one that was created first", first)
        self.check("and has its 2 pods", self.everywhere(self.runs("same", 2)), 90)
        self.check("the pods that two sites bound run once", self.everywhere(self.runs("contested", 2)), 90)

        def image(site):
            path = f"/apis/apps/v1/namespaces/{NS}/deployments/rolled"
            wanted = site.get(path)["spec"]["template"]["spec"]["containers"][0]["image"]
            images = {p["spec"]["containers"][0]["image"] for p in self.pods(site, "rolled")}
            return None if images == {wanted} and wanted != "example.org/app:v1" else f"{wanted}, pods {images}"

        rolled = self.everywhere(lambda s: image(s) or self.runs("rolled", 2)(s))
        self.check("of two images one is rolled out", rolled, 120)
        for site in self.sites:
            self.check(f"from-{site.name} runs everywhere", self.everywhere(self.runs(f"from-{site.name}", 2)), 60)
        self.check("careless runs again", self.everywhere(self.runs("careless", 2)), 90)
        self.check("every pod has the address that its own node gave it", self.everywhere(self.own_addresses), 60)
        self.check("the endpoints of the Service web are its pods", self.everywhere(self.endpoints_fit), 60)
        self.check("pods with the recommended tolerations are the same as before", self.everywhere(self.stays))
        left = max(0.0, healed + 60 - time.monotonic())
        self.check("no orphans a minute after", self.everywhere(look.owned_by_nobody), left + 5)
        self.check("the leaders renew their leases", self.renewed, 30)
        self.check("all three apiservers show the same objects", self.same_objects, 60)
        self.check("no replica differs from another", self.converged, 30)
        self.check("each site's kubernetes Service names its own apiserver", self.everywhere(self.own_endpoint))

    def afterwards(self):
        """All Deployments are still alive, and the network may go and come."""
        names = self.east.kubectl("-n", NS, "get", "deployments", "-o", "jsonpath={.items[*].metadata.name}").split()
        for i, name in enumerate(names):
            site = self.sites[i % 3]
            status = lambda: site.kubectl("-n", NS, "rollout", "status", f"deployment/{name}", "--timeout=60s") and None
            self.check(f"rollout status of {name}, at {site.name}", status)
            self.check("and it is scaled there to 3", self.do(site, "scale", "deployment", name, "--replicas=3"))
        for name in names:
            self.check(f"{name} has 3 pods everywhere", self.everywhere(self.runs(name, 3)), 90)
        for i, site in enumerate(self.sites):
            self.network.cut()
            self.check(f"cut off again, {i + 1} of 3", self.everywhere(self.lonely), 30)
            scale = self.do(site, "scale", "deployment", "web", f"--replicas={4 + i}")
            self.check(f"{site.name} scales web to {4 + i}", scale)
            if i == 0:
                self.own_apart_again()
            self.network.heal()
            self.check("and joined again", self.converged, 60)
        self.own_together_again()
        self.check("web has the pods that were wanted last", self.everywhere(self.runs("web", 6)), 90)
        self.check("it is quiet: no storm", self.quiet, 60)
        self.check("no orphans", self.everywhere(look.owned_by_nobody), 60)
        self.check("all three apiservers show the same objects", self.same_objects, 60)
        more = {name: n - self.exited[name] for name, n in self.exits().items() if n - self.exited[name] > 1}
        self.check("no component restarted more than once", lambda: more)
        lost = [f"{s.name} {p.name}" for s in self.sites for p in (s.apiserver, s.eddy, s.kwok) if not p.running()]
        self.check("no apiserver, no eddy has ended", lambda: lost)

    def failover(self):
        """The kube-apiserver of the site with the highest revisions goes to the replica with the lowest."""
        revision = {site.name: site.status()["revision"] for site in self.sites}
        low, middle, high = sorted(self.sites, key=lambda site: revision[site.name])
        for site in (low, middle, high):
            site.controllers.stop()
            site.scheduler.stop()
        # One set of controllers, on the apiserver that moves; without elections, for a lost lease would start them anew.
        argv = high.controllers.argv + ["--leader-elect=false"]
        alone = Program("controller-manager", argv, high.controllers.log)
        high.controllers = alone.start()
        argv = high.scheduler.argv + ["--leader-elect=false"]
        high.scheduler = Program("scheduler", argv, high.scheduler.log).start()
        scale = lambda site, n: self.do(site, "scale", "deployment", "web", f"--replicas={n}")
        self.check(f"the controllers of {high.name} act alone", scale(high, 4))
        self.must("and web has 4 pods", self.everywhere(self.runs("web", 4)), 120)
        reflector = look.Reflector(high, NS)
        reflector.start()
        has = lambda *names: lambda: set(names) - reflector.names
        self.must("a client watches there", has("kept"), 30)
        for site in (low, high):
            argv = site.kubectl_argv("-n", NS, "get", "configmaps", "--watch", "--output-watch-events", "--no-headers")
            # It ends when the connection does, and who needs it starts it again.
            self.watches.append(Program("watch", argv, site.folder / "watch.log", again=True).start())
        put = lambda site, name: self.do(site, "create", "configmap", name)

        high.eddy.stop(signal.SIGKILL)
        high.apiserver.stop(signal.SIGKILL)
        self.check(f"{high.name}'s eddy is dead; something is written at {low.name} meanwhile", put(low, "meanwhile"))
        high.start_apiserver(low.client)
        self.must(f"its kube-apiserver starts on the replica of {low.name}, which has not leapt", high.ready, 120)
        self.check("a write after that", put(high, "after"))
        self.check("and a scale", scale(high, 5))
        # Nothing can be awaited here: that nothing comes is what is to be seen.
        time.sleep(15)
        heard = lambda: reflector.names & {"meanwhile", "after"} or reflector.lists - 1
        self.check("is never heard of: the watch is silent", heard)
        silent = lambda: None if len(self.pods(high, "web")) == 4 else f"{len(self.pods(high, 'web'))} pods"
        self.check("and the ReplicaSet controller does nothing", silent)

        low.leap()
        self.check(f"{low.name} leaps: the client lists again and has missed nothing", has("meanwhile", "after"), 60)
        self.check("the controllers act", lambda: self.runs("web", 5)(high), 90)
        self.check("on the apiserver that was there before as well", lambda: self.runs("web", 5)(low), 60)

        high.apiserver.stop()
        high.eddy.start()
        self.must(f"{high.name}'s eddy comes back", self.converged, 60)
        self.check("something is written before it leaps", put(low, "between"))
        high.leap()
        high.start_apiserver()
        self.must("its kube-apiserver goes home after the leap", high.ready, 120)
        self.check("another write there", put(high, "home"))
        self.check("the client has missed nothing", has("meanwhile", "after", "between", "home"), 60)
        self.check("a scale there", scale(high, 6))
        self.check("and the controllers act", self.everywhere(self.runs("web", 6)), 90)
        for site in (low, high):
            said = lambda: (site.folder / "watch.log").read_text()
            missed = lambda: {"meanwhile", "after", "between", "home"} - set(said().split())
            self.check(f"kubectl get --watch at {site.name}, started again when it ends, has missed nothing", missed, 30)
        reflector.wanted = False
        self.check("all three apiservers show the same objects", self.same_objects, 60)

    def rest(self):
        """When all control planes are gone, nothing is written any more."""
        self.stop_kubernetes()
        self.check("at rest all replicas have one vector, one hash, and nothing unsettled", self.at_rest, 60)
