"""What is looked at: the objects of every site, and whether they fit together."""

import json
import threading
import time
from urllib.parse import quote

# What belongs to one site alone, and what changes too fast to be compared.
LOCAL = {("endpoints", "default", "kubernetes"), ("endpointslices", "default", "kubernetes")}
SKIPPED = {"events", "componentstatuses", "leases"}


def listable(site):
    """Paths of all lists that the apiserver has, with the resource's name; one version of each group."""
    found = [("/api/v1", site.get("/api/v1"))]
    for group in site.get("/apis")["groups"]:
        path = f"/apis/{group['preferredVersion']['groupVersion']}"
        found.append((path, site.get(path)))
    paths = {}
    for path, answer in found:
        for resource in answer["resources"]:
            name = resource["name"]
            if "list" in resource["verbs"] and "/" not in name and name not in SKIPPED:
                paths[f"{path}/{name}"] = name
    return paths


def objects(site, paths):
    """Every object without its resourceVersion, which is the site's own."""
    found = {}
    for path, resource in paths.items():
        for item in site.get(path).get("items") or []:
            meta = item["metadata"]
            if (resource, meta.get("namespace", ""), meta["name"]) not in LOCAL:
                meta.pop("resourceVersion", None)
                found[f"{path} {meta.get('namespace', '')}/{meta['name']}"] = item
    return found


def differences(sites, paths):
    """Which objects are not the same everywhere; empty when all are."""
    first, *others = [(site, objects(site, paths)) for site in sites]
    said = []
    for site, theirs in others:
        for key in sorted(first[1].keys() | theirs.keys()):
            a, b = first[1].get(key), theirs.get(key)
            if a != b:
                where = "missing" if a is None or b is None else unequal(a, b)
                said.append(f"{key} ({first[0].name}, {site.name}: {where})")
    return said


def unequal(a, b, path=""):
    """The first place in which two objects differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) != b.get(key):
                return unequal(a.get(key), b.get(key), f"{path}.{key}")
    return f"{path}: {json.dumps(a)[:80]} / {json.dumps(b)[:80]}"


def owned_by_nobody(site):
    """Replica sets and pods of which an owner, by uid, is not there."""
    kinds = {"Deployment": "/apis/apps/v1/deployments", "ReplicaSet": "/apis/apps/v1/replicasets", "Pod": "/api/v1/pods"}
    items = {kind: site.get(path)["items"] for kind, path in kinds.items()}
    uids = {item["metadata"]["uid"] for of_kind in items.values() for item in of_kind}
    return [
        f"{kind} {item['metadata']['namespace']}/{item['metadata']['name']}"
        for kind in ("ReplicaSet", "Pod")
        for item in items[kind]
        for owner in item["metadata"].get("ownerReferences", [])
        if owner["kind"] in kinds and owner["uid"] not in uids
    ]


def endpoints(site, namespace, service):
    """The addresses that the Service's slices name, sorted."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    path += f"?labelSelector=kubernetes.io/service-name%3D{service}"
    return sorted(a for slice_ in site.get(path)["items"] for e in slice_["endpoints"] for a in e["addresses"])


class Reflector(threading.Thread):
    """Lists config maps and watches from there, as client-go does: goes on at the last revision it knows when a connection
    ends, and lists again when it is told that the revision is gone."""

    def __init__(self, site, namespace):
        super().__init__(daemon=True)
        self.site, self.path = site, f"/api/v1/namespaces/{namespace}/configmaps"
        self.names, self.revision, self.lists = set(), "", 0
        self.wanted = True

    def run(self):
        while self.wanted:
            try:
                if not self.revision:
                    self._list()
                self._watch()
            except (OSError, AssertionError, ValueError):
                time.sleep(0.5)

    def _list(self):
        answer = self.site.get(self.path)
        self.names = {item["metadata"]["name"] for item in answer["items"]}
        self.revision = answer["metadata"]["resourceVersion"]
        self.lists += 1

    def _watch(self):
        connection = self.site.connect(timeout=300)
        try:
            revision = quote(self.revision)
            connection.request("GET", f"{self.path}?watch=1&allowWatchBookmarks=true&resourceVersion={revision}")
            answer = connection.getresponse()
            if answer.status == 410:
                self.revision = ""
                return
            if answer.status != 200:
                raise AssertionError(answer.status)
            while self.wanted and (line := answer.readline()):
                self._event(json.loads(line))
                if not self.revision:
                    return
        finally:
            connection.close()

    def _event(self, event):
        item = event["object"]
        if event["type"] == "ERROR":
            if item.get("code") == 410:
                self.revision = ""
                return
            raise AssertionError(item)
        self.revision = item["metadata"]["resourceVersion"]
        if event["type"] == "DELETED":
            self.names.discard(item["metadata"]["name"])
        elif event["type"] in ("ADDED", "MODIFIED"):
            self.names.add(item["metadata"]["name"])


def readiness(pod):
    """Whether a pod is ready, and since when, as each of its conditions says it."""
    status = pod["status"]
    ready = [(c["status"], c.get("lastTransitionTime"), c.get("reason")) for c in status.get("conditions", []) if c["type"] == "Ready"]
    return pod["metadata"]["name"], pod["spec"].get("nodeName"), status.get("phase"), ready


def refused(log):
    """What a fake kubelet was refused, and then gave up, but for deletes of what is gone."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if '"ERROR"' in line]
    said = [f"{log.parent.name}: {line['time']} {line['msg']}: {line.get('err')}" for line in lines]
    return [line for line in said if "failed to delete" not in line][-20:]
