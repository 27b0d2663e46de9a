"""Every object of a real store goes through leaves and Automerge, and comes back as it was."""

import base64
import json

import merge
from server import Refused


class Again:
    def __init__(self, server, program):
        self.server, self.program = server, program
        self.passed = self.failed = 0

    def run(self):
        asked = [(key, value) for key, value in self.server.stored() if value.startswith((b"k8s\0", b"{"))]
        asked += [(path, json.dumps(item).encode()) for path, item in self.shown()]
        counts = {True: 0, False: 0}
        for (key, value), answers in zip(asked, merge.ask(self.program, [[value] for _, value in asked])):
            is_json = value.startswith(b"{")
            counts[is_json] += 1
            if wrong := self.wrong(value, answers, is_json):
                self.failed += 1
                print(f"FAIL  {key}, {'JSON' if is_json else 'protobuf'}: {wrong}", flush=True)
            else:
                self.passed += 1
        kinds = len({(item["apiVersion"], item["kind"]) for _, item in self.shown()})
        print(f"{counts[False]} objects in protobuf and {counts[True]} in JSON, of {kinds} kinds: {self.failed} came back otherwise")

    def stored(self):
        """The store, as etcdctl prints one in JSON."""
        text = lambda raw: base64.b64encode(raw).decode()
        return [{"key": text(key.encode()), "value": text(value)} for key, value in self.server.stored()]

    def shown(self):
        """Every object as the API server writes it in JSON, in each version that it serves."""
        for (version, kind), (path, _) in sorted(self.server.kinds.items()):
            path = path.replace("/namespaces/default", "")
            try:
                items = self.server.ask("GET", path).get("items") or []
            except Refused as refused:
                if refused.code not in (404, 405):
                    raise
                continue
            for item in items:
                item["metadata"].pop("resourceVersion", None)
                yield f"{path}/{item['metadata'].get('name')}", {"apiVersion": version, "kind": kind, **item}

    def wrong(self, value, answers, is_json):
        if None in answers:
            return f"not understood: {['as JSON', 'as protobuf', 'through leaves'][answers.index(None)]}"
        as_json, as_protobuf, through = answers
        if not is_json:
            wrong = [name for name, answer in (("protobuf", as_protobuf), ("leaves", through)) if answer != value]
            return f"other bytes by way of {wrong}" if wrong else None
        wrong = [name for name, answer in (("JSON", as_json), ("leaves", through)) if said(json.loads(answer)) != said(json.loads(value))]
        return f"another object by way of {wrong}" if wrong else None


def said(value):
    """A value without what says nothing."""
    if isinstance(value, dict):
        inner = {key: said(one) for key, one in value.items()}
        return {key: one for key, one in inner.items() if one not in (None, "", 0, False, {}, [])}
    if isinstance(value, list):
        return [said(one) for one in value]
    return value
