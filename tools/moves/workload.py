"""What stands in the cluster that moves, as manifests."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
NS = "lab"
GROUP = "example.org"


def _meta(name, **more):
    return {"name": name, "namespace": NS, "labels": {"app": name}, **more}


def _pods(name):
    return {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "example.org/app:v1"}]},
    }


def deployment(name, replicas):
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": _pods(name)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _meta(name), "spec": spec}


def stateful_set(name, replicas):
    return {**deployment(name, replicas), "kind": "StatefulSet"} | {
        "spec": {**deployment(name, replicas)["spec"], "serviceName": name}
    }


def daemon_set(name):
    spec = {"selector": {"matchLabels": {"app": name}}, "template": _pods(name)}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": _meta(name), "spec": spec}


def job(name):
    template = _pods(name)
    template["spec"]["restartPolicy"] = "Never"
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _meta(name), "spec": {"completions": 2, "template": template}}


def cron_job(name):
    """One that has run, and does not run again for a long time."""
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job(name)["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": _meta(name), "spec": spec}


def service(name):
    spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _meta(name), "spec": spec}


def config_map(name, text):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(name), "data": {"text": text}}


def secret(name):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": _meta(name), "stringData": {"password": name}}


def definition():
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}}
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget"}
    spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
    meta = {"name": f"widgets.{GROUP}"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}


def widget(name, size):
    return {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": _meta(name), "spec": {"size": size}}


def populated():
    """Everything but the definition, which must be known first, and the widgets."""
    items = [deployment(f"steady-{n}", 2) for n in range(12)] + [deployment(f"web-{n}", 3) for n in range(4)]
    items += [stateful_set(f"set-{n}", 2) for n in range(3)] + [daemon_set("agent")]
    items += [job(f"job-{n}") for n in range(4)] + [cron_job("yearly")]
    items += [service(f"steady-{n}") for n in range(6)]
    items += [config_map(f"map-{n}", "x" * 500) for n in range(200)] + [secret(f"secret-{n}") for n in range(40)]
    return items


def widgets():
    return [widget(f"widget-{n}", n) for n in range(40)]
