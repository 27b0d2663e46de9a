"""A metrics API for the sites: what `metrics.k8s.io` is asked of pods, answered from a demand that the test sets."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

from lab import ports

GROUP = "/apis/metrics.k8s.io/v1beta1"


class Metrics:
    """All pods that match share what is demanded at the site that asks, in thousandths of a processor."""

    def __init__(self, pki, sites):
        (self.port,) = ports(1)
        self.sites = {site.name: site for site in sites}
        self.demand = {site.name: 0 for site in sites}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                # Each site's apiserver shows a certificate of its own.
                subject = dict(part[0] for part in self.connection.getpeercert().get("subject", ()))
                code, answer = outer.answer(subject.get("commonName", ""), urlparse(self.path))
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki.folder / "apiserver.crt", pki.folder / "apiserver.key")
        context.load_verify_locations(pki.folder / "ca.crt")
        context.verify_mode = ssl.CERT_OPTIONAL
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, name, url):
        if url.path == GROUP:
            resource = {"name": "pods", "singularName": "", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]}
            return 200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metrics.k8s.io/v1beta1", "resources": [resource]}
        parts = url.path.removeprefix(GROUP).strip("/").split("/")
        if name not in self.sites or len(parts) != 3 or parts[::2] != ["namespaces", "pods"]:
            return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "message": f"{name}: no {url.path}"}
        app = parse_qs(url.query).get("labelSelector", [""])[0].partition("=")[2]
        pods = self.sites[name].get(f"/api/v1/namespaces/{parts[1]}/pods?labelSelector=app%3D{app}")["items"]
        pods = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp") and pod["status"].get("phase") == "Running"]
        share = f"{self.demand[name] // max(len(pods), 1)}m"
        items = [{
            "metadata": {key: pod["metadata"][key] for key in ("name", "namespace", "labels")},
            "timestamp": pod["metadata"]["creationTimestamp"], "window": "15s",
            "containers": [{"name": "c", "usage": {"cpu": share, "memory": "1Mi"}}],
        } for pod in pods]  # fmt: skip
        return 200, {"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}

    def objects(self):
        """What has an apiserver ask this one."""
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics", "namespace": "kube-system"},
                   "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": self.port, "protocol": "TCP"}]}}  # fmt: skip
        api = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1beta1.metrics.k8s.io"},
               "spec": {"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                        "insecureSkipTLSVerify": True,
                        "service": {"namespace": "kube-system", "name": "metrics", "port": self.port}}}  # fmt: skip
        return [service, api]
