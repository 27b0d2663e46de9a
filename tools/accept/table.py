"""The table of chosen cases, and edits as it writes them."""

import copy
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

CASES = Path(__file__).resolve().parents[2] / "crates" / "crdt" / "tests" / "cases"

# By these fields elements of a list are told apart: an applied element names them.
KEYS = {
    "name", "type", "port", "protocol", "containerPort", "ip", "mountPath", "devicePath", "uid", "topologyKey",
    "whenUnsatisfiable",
}  # fmt: skip


# Addresses and names that one cluster gives out once: each case has its own.
OWN = {'"a.b"': '"a%d.b"', '"xs.a.b"': '"xs.a%d.b"', "10.0.0.9": "10.0.%d.9", "fd00::9": "fd00::%x9"}


def own(text, number):
    """A text in which what can be given out once is that case's own."""
    for word, its in OWN.items():
        text = text.replace(word, its % number)
    return text


@dataclass
class Case:
    name: str
    base: str = ""
    edits: dict = field(default_factory=lambda: {"A": [], "B": []})
    # Edits of neither side that are in the merge, too.
    results: list = field(default_factory=list)
    gives: str = ""
    # Why no API server takes these edits.
    raw: str = ""

    def numbered(self, number):
        """The same with its own addresses and names."""
        edits = {side: [Edit(own(edit.text, number)) for edit in edits] for side, edits in self.edits.items()}
        results = [Edit(own(edit.text, number)) for edit in self.results]
        return Case(self.name, own(self.base, number), edits, results, self.gives, self.raw)


# Tables of what one API server does not write: kinds that it has no definition of, and stored versions that it no longer writes.
NOT_ASKED = {"custom.txt", "versions.txt"}


def read():
    """All cases of all tables that an API server can be asked about."""
    cases = []
    for path in sorted(path for path in CASES.glob("*.txt") if path.name not in NOT_ASKED):
        objects = {}
        for line in path.read_text().splitlines():
            word, _, rest = line.strip().partition(" ")
            if word == "object":
                name, _, text = rest.partition(" ")
                objects[name] = text
            elif word == "case":
                cases.append(Case(rest))
            elif word == "of":
                cases[-1].base = objects[rest]
            elif word in ("A", "B"):
                cases[-1].edits[word].append(Edit(rest))
            elif word == "R":
                cases[-1].results.append(Edit(rest))
            elif word in ("gives", "raw"):
                setattr(cases[-1], word, rest)
    return cases


class Edit:
    """`.path = JSON`, or `.path gone`."""

    def __init__(self, text):
        self.text = text
        path, is_set, value = text.partition(" = ")
        self.gone = not is_set
        self.value = json.loads(value) if is_set else None
        path = path.removesuffix(" gone")
        self.steps = [step.strip(".") for step in re.findall(r"\[[^]]*\]|[^.\[]+", path)]

    def is_under(self, *fields):
        return self.steps[: len(fields)] == list(fields)

    def apply(self, value):
        """Makes it in a whole object."""
        *way, last = self.steps
        for step in way:
            value = enter(value, step)
        if last.startswith("["):
            at = place(value, last)
            if self.gone:
                value.pop(at)
            elif at is None:
                value.append(copy.deepcopy(self.value))
            else:
                value[at] = copy.deepcopy(self.value)
        elif self.gone:
            value.pop(last, None)
        else:
            value[last] = copy.deepcopy(self.value)

    def applied(self, configuration, whole):
        """Puts it into what a manager applies. `whole` is the object with the edit: it has what elements are told apart by."""
        *way, last = self.steps
        for step, after in zip(way, self.steps[1:]):
            whole = look(whole, step)
            if step.startswith("["):
                if (at := place(configuration, step)) is None:
                    configuration.append({key: whole[key] for key in sorted(KEYS & whole.keys())})
                    at = -1
                configuration = configuration[at]
            else:
                configuration = configuration.setdefault(step, [] if after.startswith("[") else {})
        if last.startswith("["):
            # Where the edit gives it another name, it says itself what it is told apart by.
            whole = look(whole, last) or self.value
            configuration.append({**{key: whole[key] for key in sorted(KEYS & whole.keys())}, **self.value})
        else:
            configuration[last] = copy.deepcopy(self.value)

    def at(self, value):
        """What lies in an object where the edit was made."""
        for step in self.steps:
            value = look(value, step)
        return value

    def stands(self, value, alone):
        """Whether an object has there what the one with this edit alone has, or more."""
        wanted = self.at(alone)
        return not self.at(value) if wanted is None else has(self.at(value), wanted)

    def meets(self, other):
        """Whether one of two edits lies in the other."""
        return all(one == two for one, two in zip(self.steps, other.steps))


def place(items, step):
    key, _, name = step[1:-1].partition("=")
    return next((at for at, item in enumerate(items) if item.get(key) == name), None)


def look(value, step):
    """What lies one step further, or None."""
    if step.startswith("["):
        at = place(value, step) if isinstance(value, list) else None
        return None if at is None else value[at]
    return value.get(step) if isinstance(value, dict) else None


def enter(value, step):
    """The same; it is made where there is none."""
    if step.startswith("["):
        return value[place(value, step)]
    if value.get(step) is None:
        value[step] = {}
    return value[step]


def has(value, wanted):
    """Whether a value is the wanted one, with defaults beside it."""
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(has(value.get(key), one) for key, one in wanted.items())
    if isinstance(wanted, list):
        return isinstance(value, list) and all(any(has(item, one) for item in value) for one in wanted)
    return value == wanted or (not wanted and not value)
