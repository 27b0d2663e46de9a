"""What a kubelet does beside acting on events: it looks at its pods again from time to time.

kwok acts on events alone, and what an apiserver refused once it tries no more. That is told here, and then tried again."""

import threading
import time

from look import readiness


class Resync:
    """Touches the pods of a site's nodes that have not been ready for long, so that kwok sees them again."""

    EVERY, PATIENCE = 5, 20

    def __init__(self, site):
        self.site, self.wanted = site, True
        self.since = {}
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while self.wanted:
            time.sleep(self.EVERY)
            try:
                self._look()
            except (AssertionError, OSError, ValueError, KeyError):
                continue  # The apiserver is away.

    def _look(self):
        pods = self.site.get("/api/v1/pods")["items"]
        own = [p for p in pods if p["spec"].get("nodeName") in self.site.nodes and not p["metadata"].get("deletionTimestamp")]
        unready = {p["metadata"]["uid"]: p for p in own if not any(ready[0] == "True" for ready in readiness(p)[3])}
        now = time.monotonic()
        self.since = {uid: self.since.get(uid, now) for uid in unready}
        for uid, pod in unready.items():
            if self.wanted and now - self.since[uid] >= self.PATIENCE:
                meta = pod["metadata"]
                told = f"{readiness(pod)}, revision {meta['resourceVersion']}"
                print(f"     {self.site.name}: not ready for {self.PATIENCE} s, its kubelet looks again: {told}", flush=True)
                self.since[uid] = now
                touch = f"sites/looked-at={int(time.time())}"
                self.site.kubectl("-n", meta["namespace"], "annotate", "--overwrite", "pod", meta["name"], touch)
