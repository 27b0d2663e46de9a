"""Has two managers edit each object of the table, and judges what eddy merges of it by what the API server says."""

import copy
import json
import time

import merge
import owners
from server import Refused

MANAGERS = {"A": "manager-a", "B": "manager-b"}
APPLY = "application/apply-patch+yaml"
ENCODINGS = ("protobuf", "JSON")
# What only the API server writes of a new object, or gives to one object alone.
OWN = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
# Kinds of which there is no copy under another name: the name is said again inside, or their uid is.
ONE_NAME = {"CustomResourceDefinition", "Namespace", "Job"}
# What the API server fills in from something else of the same object.
FOLLOWS = {"f:podIPs"}


class Staged:
    """A case whose edits were stored."""

    def __init__(self, case, kind, path, parts, name):
        self.case, self.kind, self.list, self.parts = case, kind, path, parts
        self.path = f"{path}/{name}"
        self.key = None
        # Of the base and of each side: what is stored, and the object that the API server shows.
        self.stored, self.shown = {}, {}
        self.merged = {}
        # Whether one of the sides deletes it or binds it to a node.
        self.is_special = False


class Judge:
    def __init__(self, server, program, cases):
        self.server, self.program, self.cases = server, program, cases
        self.passed = self.failed = 0
        self.ways = {"apply": 0, "update": 0}
        self.pruned = self.required = 0

    def run(self):
        staged = []
        for number, case in enumerate(self.cases):
            try:
                one = self.stage(case.numbered(number), number)
            except Refused as refused:
                if case.raw:
                    print(f"raw   {case.name}: {case.raw}", flush=True)
                else:
                    self.fail(case.name, f"refused before any merge: {refused}")
                continue
            if case.raw:
                self.fail(case.name, f"an API server takes it, although the table says that it does not: {case.raw}")
            staged.append(one)
        lines = [[self.value(one, side, encoding) for side in ("base", "A", "B")] for one in staged for encoding in ENCODINGS]
        answers = iter(merge.ask(self.program, lines))
        for one in staged:
            for encoding in ENCODINGS:
                (one.merged[encoding],) = next(answers)
                wrong = self.tried(one, encoding)
                if wrong:
                    self.fail(f"{one.case.name} ({encoding})", wrong)
                else:
                    self.passed += 1
        raw = sum(1 for case in self.cases if case.raw)
        print(f"{len(staged)} cases went through the API server ({self.ways['apply']} sides applied, {self.ways['update']} updated), ", end="")
        print(f"{raw} are raw writes only; {self.pruned} sides gave up what they own, of {self.required} it cannot be missing")

    def fail(self, name, why):
        self.failed += 1
        print(f"FAIL  {name}: {why[:900]}", flush=True)

    # -------------------------------------------------------------- two managers

    def stage(self, case, number):
        base = json.loads(case.base)
        base["metadata"].pop("uid", None)
        if base["metadata"]["name"] == "a":
            base["metadata"]["name"] = f"a{number}"
        name, status = base["metadata"]["name"], base.get("status")
        kind = (base["apiVersion"], base["kind"])
        if kind not in self.server.kinds:
            raise Refused(404, f"no API server serves {kind}")
        path, parts = self.server.kinds[kind]
        one = Staged(case, kind, path, parts, name)
        shown = self.server.ask("POST", f"{path}?fieldManager=founder", base)
        if kind[1] == "CustomResourceDefinition":
            shown = self.established(one)
        if status and "status" in parts:
            shown["status"] = {**(shown.get("status") or {}), **{key: value for key, value in status.items() if value is not None}}
            shown = self.server.ask("PUT", f"{one.path}/status?fieldManager=founder", shown)
        one.key, stored = self.server.written_at(shown["metadata"]["resourceVersion"])
        one.stored["base"], one.shown["base"] = stored, shown
        for side in MANAGERS:
            try:
                self.edit(one, side)
                one.stored[side] = self.server.value(one.key)
                one.shown[side] = self.server.ask("GET", one.path) if one.stored[side] else None
            except Refused:
                self.server.delete(one.key)
                raise
            self.server.put(one.key, one.stored["base"])
        return one

    def established(self, one):
        """Its own controllers have written what they have to say."""
        for _ in range(50):
            shown = self.server.ask("GET", one.path)
            conditions = {c["type"] for c in shown.get("status", {}).get("conditions") or [] if c["status"] == "True"}
            if "Established" in conditions:
                time.sleep(0.2)
                return self.server.ask("GET", one.path)
            time.sleep(0.1)
        return shown

    def edit(self, one, side):
        edits = one.case.edits[side]
        deletion = [e for e in edits if e.is_under("metadata", "deletionTimestamp") or e.is_under("metadata", "deletionGracePeriodSeconds")]
        bound = [edit for edit in edits if one.kind[1] == "Pod" and edit.is_under("spec", "nodeName")]
        for edit in bound:
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": one.path.rsplit("/", 1)[1]}}
            self.server.ask("POST", f"{one.path}/binding", binding | {"target": {"kind": "Node", "name": edit.value}})
        rest = [edit for edit in edits if edit not in deletion + bound]
        one.is_special = one.is_special or bool(deletion or bound)
        has_status = "status" in one.parts
        if deletion and one.kind[1] == "Namespace":
            # The API server says itself that it ends.
            rest = [edit for edit in rest if not edit.is_under("status")]
        for part in ("", "status"):
            of_part = [edit for edit in rest if (has_status and edit.is_under("status")) == bool(part)]
            if of_part:
                self.write(one, side, of_part, f"/{part}" if part else "")
        if deletion:
            grace = next((e.value for e in deletion if e.steps[-1] == "deletionGracePeriodSeconds"), None)
            options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
            self.server.ask("DELETE", one.path, options | ({} if grace is None else {"gracePeriodSeconds": grace}))

    def write(self, one, side, edits, part):
        """By server-side apply; by an update where something is taken away, also where one of several takes another's place."""
        if one.kind[1] == "Namespace" and any(edit.is_under("spec", "finalizers") for edit in edits):
            part = "/finalize"
        query = f"{one.path}{part}?fieldManager={MANAGERS[side]}"
        if part != "/finalize" and not any(edit.gone for edit in edits):
            configuration, whole = self.nothing(one), self.edited(one, edits)
            for edit in edits:
                edit.applied(configuration, whole)
            try:
                self.server.ask("PATCH", f"{query}&force=true", configuration, APPLY)
                self.ways["apply"] += 1
                return
            except Refused as refused:
                if refused.code != 422:
                    raise
        for attempt in range(5):
            try:
                self.server.ask("PUT", query, self.edited(one, edits))
                self.ways["update"] += 1
                return
            except Refused as refused:
                # A controller of the API server itself may write a definition meanwhile.
                if refused.code != 409 or attempt == 4:
                    raise

    def edited(self, one, edits):
        whole = self.server.ask("GET", one.path)
        for edit in edits:
            edit.apply(whole)
        return whole

    def nothing(self, one):
        """What a manager applies that sets nothing."""
        return {"apiVersion": one.kind[0], "kind": one.kind[1], "metadata": {"name": one.path.rsplit("/", 1)[1]}}

    def value(self, one, side, encoding):
        """As a site stores it: the API server's own bytes, or its JSON."""
        is_json = not one.stored["base"].startswith(b"k8s\0")
        if one.stored[side] is None:
            # A site that deletes an object outright has nothing to merge.
            return one.stored["base"]
        if (encoding == "JSON") == is_json:
            return one.stored[side]
        if encoding == "protobuf":
            return one.stored[side]
        shown = copy.deepcopy(one.shown[side])
        shown["metadata"].pop("resourceVersion", None)
        return json.dumps(shown).encode()

    # -------------------------------------------------------------- what became of it

    def tried(self, one, encoding):
        """As below, again where a controller of the API server itself wrote meanwhile."""
        for attempt in range(5):
            try:
                return self.judge(one, encoding)
            except Refused as refused:
                if refused.code != 409 or attempt == 4:
                    return f"refused: {refused}"
                time.sleep(0.2)

    def judge(self, one, encoding):
        """What is wrong with the merged object; nothing when nothing is."""
        merged, gives = one.merged[encoding], one.case.gives
        if merged is None:
            return None if gives == "nothing" else "nothing is left of it"
        if gives == "nothing":
            return "it is still there"
        self.server.put(one.key, merged)
        shown = self.server.ask("GET", one.path)
        return (
            self.accepted(one, shown)
            or self.edits_stand(one, shown)
            or self.owned(one, shown)
            or self.given_up(one, merged)
        )

    def accepted(self, one, shown):
        """As it stands, as an update of what each site had, and as a new object."""
        touched = copy.deepcopy(shown)
        touched["metadata"].setdefault("annotations", {})["accept/touched"] = "yes"
        self.dry("PUT", one.path, touched, "as it stands")
        # A deletion and a binding are no updates. What is set once cannot be set again where it was set otherwise. A port of nodes
        # that only B has is taken, because it was taken here.
        sides = [] if one.is_special else {"A": ["A"], "B": ["A", "B"]}.get(one.case.gives, ["A", "B"])
        if one.kind[1] == "Service":
            sides = [side for side in sides if side == "B"]
        for side in sides:
            update = copy.deepcopy(shown)
            update["metadata"]["resourceVersion"] = str(self.server.put(one.key, one.stored[side]))
            self.dry("PUT", one.path, update, f"as an update at {side}")
            if "status" in one.parts and "status" in update:
                self.dry("PUT", f"{one.path}/status", update, f"as an update of its status at {side}")
        if one.kind[1] not in ONE_NAME:
            new = copy.deepcopy(shown)
            new["metadata"] = {key: value for key, value in new["metadata"].items() if key not in OWN}
            new["metadata"]["name"] += "-new"
            if one.kind[1] == "Service":
                for field in ("clusterIP", "clusterIPs", "healthCheckNodePort"):
                    new["spec"].pop(field, None)
                for port in new["spec"].get("ports", []):
                    port.pop("nodePort", None)
            self.dry("POST", one.list, new, "as a new object")

    def dry(self, method, path, body, how):
        for attempt in range(5):
            try:
                return self.server.ask(method, f"{path}?dryRun=All&fieldManager=third", body)
            except Refused as refused:
                if refused.code != 409 or attempt == 4:
                    raise Refused(refused.code, f"{how}: {refused.message}") from refused
                # A controller of the API server itself wrote meanwhile.
                now = self.server.ask("GET", path.removesuffix("/status"))
                body["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"]

    def edits_stand(self, one, shown):
        """What the table keeps is there as the site alone had it."""
        for side in {"A B": "AB", "A": "A", "B": "B"}.get(one.case.gives, ""):
            for edit in one.case.edits[side]:
                settled = [other for other in one.case.results if edit.meets(other)]
                if not settled and not edit.stands(shown, one.shown[side]):
                    return f"the edit of {side} is not in it: {edit.text}"

    def owned(self, one, shown):
        """Each manager owns what it set and is there, and nothing that it gave up to another."""
        for side, manager in MANAGERS.items():
            alone = one.shown[side]
            for key in owners.entries(alone) if alone else []:
                if key[0] == manager and (lost := owners.lost(alone, shown, key)):
                    return f"{key} set and does not own {lost}"
                if key[0] == "founder" and (kept := owners.kept_wrongly(alone, one.shown["base"], shown, key)):
                    return f"{key} gave up and owns {kept}"

    def given_up(self, one, merged):
        """A manager that applies nothing any more gives up what it owns alone: it is gone, or what it is by default."""
        self.server.put(one.key, merged)
        shown = self.server.ask("GET", one.path)
        for side, manager in MANAGERS.items():
            for key in owners.entries(shown):
                if key[:2] != (manager, "Apply"):
                    continue
                part = f"/{key[2]}" if key[2] else ""
                query = f"{one.path}{part}?fieldManager={manager}&force=true&dryRun=All"
                alone = owners.own_alone(shown, key)
                try:
                    pruned = self.server.ask("PATCH", query, self.nothing(one), APPLY)
                except Refused as refused:
                    if refused.code != 422:
                        raise
                    self.required += 1
                    continue
                self.pruned += 1
                if key in owners.entries(pruned):
                    return f"{key} still owns something when it applies nothing"
                still = [path for path in alone if not FOLLOWS & set(path) and self.is_kept(shown, pruned, path)]
                if still:
                    return f"{key} gives up {still}, and it stays"

    def is_kept(self, shown, pruned, path):
        value = owners.value_at(shown, path)
        return value is not None and not isinstance(value, (dict, list)) and owners.value_at(pruned, path) == value
