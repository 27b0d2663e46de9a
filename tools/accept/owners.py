"""Who owns which fields of an object, as server-side apply notes it."""

import json


def entries(obj):
    """The sets of paths by manager, operation and subresource."""
    found = {}
    for entry in obj["metadata"].get("managedFields", []):
        key = (entry["manager"], entry["operation"], entry.get("subresource", ""))
        found[key] = set(paths(entry.get("fieldsV1", {})))
    return found


def paths(fields, around=()):
    """The paths that are owned themselves: ends, and what has a `.`"""
    for name, inner in fields.items():
        if name == ".":
            yield around
        elif inner:
            yield from paths(inner, around + (name,))
        else:
            yield around + (name,)


def value_at(obj, path):
    """What lies at a path; None where nothing does."""
    for step in path:
        kind, _, name = step.partition(":")
        if kind == "f":
            obj = obj.get(name) if isinstance(obj, dict) else None
        elif kind == "v":
            wanted = json.loads(name)
            obj = wanted if isinstance(obj, list) and wanted in obj else None
        elif kind == "k" and isinstance(obj, list):
            keys = json.loads(name)
            obj = next((item for item in obj if all(item.get(key) == value for key, value in keys.items())), None)
        else:
            return None
        if obj is None:
            return None
    return obj


def lost(alone, merged, key):
    """What a manager set at its site, is in the merged object, and is not owned by it there."""
    had, has = entries(alone).get(key, set()), entries(merged).get(key, set())
    return sorted(path for path in had - has if value_at(merged, path) == value_at(alone, path) is not None)


def kept_wrongly(alone, base, merged, key):
    """What a manager gave up to another at one site, and owns all the same in the merged object."""
    given = entries(base).get(key, set()) - entries(alone).get(key, set())
    return sorted(path for path in given & entries(merged).get(key, set()) if value_at(merged, path) is not None)


def own_alone(obj, key):
    """The paths that only that manager owns."""
    all_of = entries(obj)
    others = set().union(*(owned for other, owned in all_of.items() if other != key))
    return all_of.get(key, set()) - others
