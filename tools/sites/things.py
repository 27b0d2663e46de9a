"""A resource of one's own, with a controller that writes its status."""

import threading
import time

from words import NS

GROUP = "lab.example.org"
LIST = f"/apis/{GROUP}/v1/namespaces/{NS}/things"

_CONDITIONS = {
    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    "items": {"type": "object", "required": ["type"], "properties": {
        "type": {"type": "string"}, "status": {"type": "string"}, "reason": {"type": "string"},
    }},
}  # fmt: skip

_SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {"type": "object", "properties": {
            "size": {"type": "integer"}, "note": {"type": "string"}, "color": {"type": "string"},
        }},
        "status": {"type": "object", "properties": {
            "size": {"type": "integer"}, "observedGeneration": {"type": "integer"}, "conditions": _CONDITIONS,
        }},
    },
}  # fmt: skip

DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"things.{GROUP}"},
    "spec": {
        "group": GROUP, "scope": "Namespaced", "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
        "versions": [{
            "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": _SCHEMA},
        }],
    },
}  # fmt: skip

# What is declared while the sites are cut off.
POLICY = f"counters:\n- {GROUP}/v1/Thing:.spec.size:min=0\natomic:\n- {GROUP}/v1/Thing:.status.conditions\n"


def thing(name):
    return {
        "apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": name, "namespace": NS}, "spec": {"size": 3, "note": "a"},
    }  # fmt: skip


def behind(one):
    """What its status does not say of its spec yet."""
    wanted, status = one["spec"].get("size"), one.get("status", {})
    ready = [c.get("reason") for c in status.get("conditions", []) if c["type"] == "Ready"]
    said = (status.get("size"), status.get("observedGeneration"), ready)
    return None if said == (wanted, one["metadata"]["generation"], [f"Size{wanted}"]) else f"{one['spec']}, {status}"


class Controller(threading.Thread):
    """Has the status say what the spec wants, at one site."""

    EVERY = 0.5

    def __init__(self, site):
        super().__init__(daemon=True)
        self.site, self.wanted = site, True

    def run(self):
        while self.wanted:
            time.sleep(self.EVERY)
            try:
                self.look()
            except (AssertionError, OSError, ValueError, KeyError):
                continue  # The apiserver is away, or somebody else was first.

    def look(self):
        for one in self.site.get(LIST)["items"]:
            if behind(one) and self.wanted:
                size = one["spec"].get("size")
                ready = {"type": "Ready", "status": "True", "reason": f"Size{size}"}
                one["status"] = {
                    "size": size, "observedGeneration": one["metadata"]["generation"],
                    "conditions": [c for c in one.get("status", {}).get("conditions", []) if c["type"] != "Ready"] + [ready],
                }  # fmt: skip
                self.site.ask("PUT", f"{LIST}/{one['metadata']['name']}/status", one)
