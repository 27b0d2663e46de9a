"""A resource of one's own at three sites: its schema says how it merges, and moves on while they are cut off."""

import things
from words import Sites


class Own(Sites):
    def ask_all(self, look_at):
        """What `look_at` makes of the resource at every site."""
        return self.everywhere(lambda site: look_at(site.get(f"{things.LIST}/own")))

    def own_is(self, wanted):
        def look_at(one):
            said = things.said(one)
            return None if said == wanted else f"{said}"

        return self.ask_all(look_at)

    def apply(self, site, manager, spec):
        """As `kubectl apply --server-side` does it."""
        one = {"apiVersion": things.THING["apiVersion"], "kind": "Thing", "metadata": {"name": "own"}, "spec": spec}
        path = f"{things.LIST}/own?fieldManager={manager}&force=true"
        return lambda: site.ask("PATCH", path, one, "application/apply-patch+yaml") and None

    def own_rules(self, number, counters, atomic):
        """All merge by one number, which names those, and by the definition that they have."""

        def look_at():
            statuses = [site.status() for site in self.sites]
            told = [{key: s[key] for key in ("rules", "counters", "atomic", "custom_kinds", "waiting_kinds")} for s in statuses]
            wanted = {"rules": number, "counters": counters, "atomic": atomic, "custom_kinds": 1, "waiting_kinds": []}
            return None if all(one == wanted for one in told) else f"{told}"

        return look_at

    def own_begins(self):
        self.must("a resource is defined at one site", lambda: self.east.ask("POST", things.DEFINITIONS, things.DEFINITION) and None)

    def own_runs(self):
        self.must("every apiserver serves the resource", self.everywhere(lambda site: site.get(things.LIST)["items"]), 60)
        for site in self.sites:
            controller = things.Controller(site)
            self.controllers.append(controller)
            controller.start()
        # What is written before merges by the rules that held then.
        self.check("all merge it by its schema", self.own_rules(2, [], []), 30)
        self.must("one is created at another site", lambda: self.west.ask("POST", things.LIST, things.THING) and None, 30)
        self.must("and its controller has seen it", self.ask_all(things.behind), 30)

    def own_apart(self):
        east, west, north = self.sites
        self.check("east applies a size, a mark and parts to the resource of its own", self.apply(east, "east", things.EAST))
        self.check("west applies others", self.apply(west, "west", things.WEST))
        remove = lambda: north.ask("PATCH", f"{things.LIST}/own", things.REMOVED, "application/json-patch+json") and None
        self.check("north removes a part", remove)
        policy = self.folder / "policy.yaml"
        policy.write_text(things.POLICY)
        self.check("and declares another policy of merges", lambda: north.eddy_says("declare", "--merge-policy", policy) and None)
        path = f"{things.DEFINITIONS}/{things.DEFINITION['metadata']['name']}"
        self.check("and a newer schema", lambda: north.ask("PATCH", path, things.newer(), "application/merge-patch+json") and None)

        def waits():
            status = north.status()
            told = status["rules"], status["declared_rules"], [kind["name"] for kind in status["waiting_kinds"]]
            return None if told == (2, 3, [things.NAME]) else f"{told}"

        self.check("both of which wait for the others", waits, 10)

    def own_together(self):
        self.check("the resource of its own has what each site applied, by its schema", self.own_is(things.BOTH), 30)
        self.check("and its controllers have seen it", self.ask_all(things.behind), 30)
        self.check("all merge by the new policy and the new schema", self.own_rules(4, [things.COUNTER], [things.ATOMIC]), 30)
        explained = lambda site: {".spec.parts", ".spec.tags"} - set(site.eddy_says("explain merge", "Thing").split())
        self.check("eddy explain tells that schema at every site", self.everywhere(explained))
        self.check("east's manager applies less, at north", self.apply(self.north, "east", things.PRUNED))
        self.check("which takes away what was its own, and no more", self.own_is(things.REST), 30)

    def own_apart_again(self):
        """Once more, for the new rules: a counter and a set."""
        for site in (self.east, self.west):
            grow = [{"op": "test", "path": "/spec/size", "value": 5}, {"op": "replace", "path": "/spec/size", "value": 6}]
            patch = lambda: site.ask("PATCH", f"{things.LIST}/own", grow, "application/json-patch+json") and None
            self.check(f"{site.name} makes the resource of its own larger by one", patch)
            self.check("and gives it a tag", self.apply(site, f"tags-{site.name}", {"tags": [site.name]}))

    def own_together_again(self):
        wanted = {**things.REST, "size": 7, "tags": {"east", "west"}}
        self.check("the resource of its own is larger by two and has both tags", self.own_is(wanted), 30)
        self.check("and its controllers have seen that", self.ask_all(things.behind), 30)
