"""A resource of one's own, with a controller that writes its status."""

import copy
import threading
import time
from http.client import HTTPException

from words import NS

GROUP = "lab.example.org"
NAME = f"{GROUP}/Thing"
LIST = f"/apis/{GROUP}/v1/namespaces/{NS}/things"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_SET = {"type": "array", "x-kubernetes-list-type": "set", "items": _TEXT}


def _keyed(keys, **fields):
    return {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
        "items": {"type": "object", "required": ["name"] if "name" in keys else keys, "properties": fields},
    }  # fmt: skip


_PARTS = _keyed(["zone", "name"], zone={"type": "string", "default": "main"}, name=_TEXT, image=_TEXT, weight=_NUMBER)
_CONDITIONS = _keyed(["type"], type=_TEXT, status=_TEXT, reason=_TEXT)

DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"things.{GROUP}"},
    "spec": {
        "group": GROUP, "scope": "Namespaced", "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
        "versions": [{
            "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {
                    "size": _NUMBER, "note": _TEXT, "color": _TEXT, "parts": _PARTS, "marks": _SET,
                }},
                "status": {"type": "object", "properties": {
                    "size": _NUMBER, "observedGeneration": _NUMBER, "conditions": _CONDITIONS,
                }},
            }}},
        }],
    },
}  # fmt: skip

# What is declared while the sites are cut off.
COUNTER, ATOMIC = f"{GROUP}/v1/Thing:.spec.size:min=0", f"{GROUP}/v1/Thing:.status.conditions"
POLICY = f"counters:\n- {COUNTER}\natomic:\n- {ATOMIC}\n"

# One part has nothing but its name at east, one has the same name in another zone at west; north removes `y`.
THING = {
    "apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": "own", "namespace": NS},
    "spec": {
        "size": 3, "note": "a", "marks": ["first"],
        "parts": [{"name": "x", "image": "v1", "weight": 1}, {"name": "y", "image": "v1", "weight": 1}],
    },
}  # fmt: skip
EAST = {"size": 5, "marks": ["east"], "parts": [{"name": "x", "weight": 2}, {"name": "east"}]}
WEST = {"color": "red", "marks": ["west"], "parts": [{"name": "x", "image": "v2"}, {"zone": "other", "name": "x"}]}
REMOVED = [{"op": "test", "path": "/spec/parts/1/name", "value": "y"}, {"op": "remove", "path": "/spec/parts/1"}]
BOTH = {
    "size": 5, "note": "a", "color": "red", "marks": {"first", "east", "west"},
    "parts": {("main", "x"): ("v2", 2), ("main", "east"): (None, None), ("other", "x"): (None, None)},
}  # fmt: skip
# What the manager of east does not apply any more is pruned, and nothing that others own.
PRUNED = {"size": 5, "parts": [{"name": "x", "weight": 2}]}
REST = {**BOTH, "marks": {"first", "west"}, "parts": {("main", "x"): ("v2", 2), ("other", "x"): (None, None)}}


def newer():
    """The definition's versions, with one more set."""
    versions = copy.deepcopy(DEFINITION["spec"]["versions"])
    versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["tags"] = _SET
    return {"spec": {"versions": versions}}


def said(one):
    """Its spec: lists without their order, by what tells the elements apart."""
    spec = dict(one["spec"])
    spec.update({name: set(spec[name]) for name in ("marks", "tags") if name in spec})
    spec["parts"] = {(part["zone"], part["name"]): (part.get("image"), part.get("weight")) for part in spec["parts"]}
    return spec


def behind(one):
    """What its status does not say of its spec yet."""
    wanted, status = one["spec"].get("size"), one.get("status", {})
    ready = [c.get("reason") for c in status.get("conditions", []) if c["type"] == "Ready"]
    seen = (status.get("size"), status.get("observedGeneration"), ready)
    return None if seen == (wanted, one["metadata"]["generation"], [f"Size{wanted}"]) else f"{one['spec']}, {status}"


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
            except (AssertionError, OSError, HTTPException, ValueError, KeyError):
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
