"""A long absence: each site works on under load, cut off from the others, and is joined again."""

import json
import threading
import time

from words import NS, Sites

# How long a site waits between two rounds of writes, seconds.
PAUSE = 0.5


class Load(threading.Thread):
    """Writes at one site until it is told to stop: objects of its own, one that all sites write, and some that come and go."""

    def __init__(self, site):
        super().__init__(daemon=True)
        self.site = site
        self.rounds = 0
        self.writes = 0
        self.refused = []
        self.ended = threading.Event()

    def send(self, method, path, body=None):
        connection = self.site.connect()
        try:
            kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": kind})
            answer = connection.getresponse()
            said = answer.read()
        except OSError as error:
            self.refused.append(f"{method} {path}: {error}")
            return
        finally:
            connection.close()
        self.writes += 1
        if answer.status >= 300 and not (method == "DELETE" and answer.status == 404):
            self.refused.append(f"{method} {path}: {answer.status} {said[:120]!r}")

    def run(self):
        name, maps = self.site.name, f"/api/v1/namespaces/{NS}/configmaps"
        deployment = f"/apis/apps/v1/namespaces/{NS}/deployments/load-{name}"
        while not self.ended.is_set():
            self.rounds += 1
            said = str(self.rounds)
            self.send("PATCH", f"{maps}/load-{name}", {"data": {"round": said}})
            self.send("PATCH", f"{maps}/load-all", {"data": {name: said}})
            # Ten that come and go.
            one = f"churn-{name}-{self.rounds % 10}"
            self.send("DELETE", f"{maps}/{one}")
            self.send("POST", maps, {"metadata": {"name": one}, "data": {"round": said}})
            if self.rounds % 20 == 0:
                self.send("PATCH", deployment, {"spec": {"replicas": self.replicas()}})
            self.ended.wait(PAUSE)

    def replicas(self):
        """How many pods were asked for last."""
        return 1 + self.rounds // 20 % 3

    def stop(self):
        self.ended.set()
        self.join()


class Absence(Sites):
    def away(self, minutes):
        """What `minutes` apart cost, and what is there afterwards."""
        maps = ("load-all", *(f"load-{site.name}" for site in self.sites))
        for name in maps:
            self.must(f"a config map {name}", self.do(self.east, "create", "configmap", name))
        for site in self.sites:
            self.must(f"a Deployment load-{site.name}", self.create(self.east, self.deployment(f"load-{site.name}", 1, site=site)))
            self.must("it runs", self.everywhere(self.runs(f"load-{site.name}", 1)), 90)
        self.tell("before the long absence")
        self.network.cut()
        self.must("each site is alone", self.everywhere(lambda site: [p["name"] for p in site.status()["peers"] if p["connected"]]), 30)
        loads = [Load(site) for site in self.sites]
        for load in loads:
            load.start()
        for part in range(4):
            time.sleep(minutes * 15)
            self.tell(f"{minutes * (part + 1) / 4:.1f} minutes apart")
        for load in loads:
            load.stop()
        told = ", ".join(f"{load.site.name} {load.writes}" for load in loads)
        self.check(f"no write was refused in {minutes} minutes apart (writes: {told})", lambda: [load.refused[:3] for load in loads if load.refused])
        alarms = lambda site: [a for a in site.status()["alarms"] if "NOSPACE" in str(a) or "CORRUPT" in str(a)]
        self.check("no replica has run out of space", self.everywhere(alarms))
        self.network.heal()
        healed = time.monotonic()
        self.must("the replicas meet again after the long absence", self.converged, 60)
        last = {load.site.name: str(load.rounds) for load in loads}
        data = lambda site, name: site.get(f"/api/v1/namespaces/{NS}/configmaps/{name}").get("data", {})
        self.check("the config map that all wrote has the last of each",
                   self.everywhere(lambda site: None if data(site, "load-all") == last else data(site, "load-all")), 30)
        print(f"     (met again and merged {time.monotonic() - healed:.1f} s after the link was back)", flush=True)
        for load in loads:
            name = load.site.name
            own = lambda site: None if data(site, f"load-{name}") == {"round": last[name]} else data(site, f"load-{name}")
            self.check(f"and that of {name} too", self.everywhere(own), 30)
            there = lambda site: [n for n in range(10) if self.gone("configmap", f"churn-{name}-{n}")(site) == ""]
            self.check(f"what came and went last at {name} is there", self.everywhere(there), 30)
            self.check(f"its Deployment is as it was scaled last", self.everywhere(self.runs(f"load-{name}", load.replicas())), 120)
        self.check("every node is ready again", self.everywhere(self.nodes_ready), 120)
        self.check("no replica differs from another after the long absence", self.converged, 30)
        self.check("all three apiservers show the same objects", self.same_objects, 90)
        self.tell("joined again")

    def tell(self, when):
        """Prints what each replica takes."""
        for site in self.sites:
            status = site.status()
            print(f"     ({when}: {site.name}: {site.memory()} MB resident, {status['unsettled_keys']} unsettled keys)", flush=True)
