"""The writes of a day, in less than a day: renewals of leases for the most part, as an idle control plane makes them."""

import json
import threading
import time
from datetime import datetime, timezone
from http.client import HTTPException

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
MAPS = "/api/v1/namespaces/{ns}/configmaps"


class Load:
    """Threads that patch leases of their own, and now and then a config map of their own, until stopped or so many times."""

    THREADS = 8
    # Of so many patches one goes to a config map, as a status or an annotation would be written.
    OTHER = 10

    def __init__(self, site, namespace, total=None, per_second=None):
        self.site, self.namespace = site, namespace
        self.pause = self.THREADS / per_second if per_second else 0
        self.total = total
        self.done = self.refused = 0
        self.lock = threading.Lock()
        self.wanted = True
        self.since = time.monotonic()
        self.threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(self.THREADS)]
        for thread in self.threads:
            thread.start()

    @classmethod
    def objects(cls, namespace):
        """What it writes, to be created first."""
        meta = lambda n: {"name": f"busy-{n}", "namespace": namespace}
        lease = lambda n: {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta(n), "spec": {}}
        config = lambda n: {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(n), "data": {"n": "0"}}
        return [make(n) for n in range(cls.THREADS) for make in (lease, config)]

    def _take(self):
        with self.lock:
            if not self.wanted or (self.total is not None and self.done >= self.total):
                return None
            self.done += 1
            return self.done

    def _run(self, n):
        connection = None
        while (number := self._take()) is not None:
            if number % self.OTHER:
                now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                path, patch = LEASES, {"spec": {"holderIdentity": f"node-{n}", "renewTime": now}}
            else:
                path, patch = MAPS, {"data": {"n": str(number)}}
            try:
                connection = connection or self.site.connect()
                connection.request(
                    "PATCH", f"{path.format(ns=self.namespace)}/busy-{n}", json.dumps(patch),
                    {"Content-Type": "application/merge-patch+json"},
                )  # fmt: skip
                answer = connection.getresponse()
                answer.read()
                refused = answer.status != 200
            except (OSError, HTTPException):
                refused, connection = True, None
            time.sleep(self.pause)
            if refused:
                with self.lock:
                    self.refused += 1
                    self.done -= 1
                time.sleep(0.2)

    def finished(self):
        return None if not any(thread.is_alive() for thread in self.threads) else f"{self.done} writes, {self.refused} refused"

    def stop(self):
        """How many writes were taken, and in how many seconds."""
        self.wanted = False
        for thread in self.threads:
            thread.join(60)
        return self.done, time.monotonic() - self.since
