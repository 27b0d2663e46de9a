"""A replica under load, and what it promised: what the power cuts of both kinds share."""
import os, random, signal, socket, subprocess, threading, time

import client  # beside this file

UNDER_WAY = 48
START_SECONDS = 60


def say(text):
    print(text, flush=True)


def free_ports(count):
    """Free ports. They are held until all are known, so that none comes twice."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Eddy:
    """A replica on a data dir."""

    def __init__(self, binary, data, log, flags=()):
        self.port, peer = free_ports(2)
        me, self.log = f"http://127.0.0.1:{self.port}", log
        with open(log, "w") as out:
            self.process = subprocess.Popen(
                [binary, "--data-dir", data, "--listen-client-urls", me, "--advertise-client-urls", me,
                 "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                 "--initial-cluster", f"default=http://127.0.0.1:{peer}", *flags], stdout=out, stderr=out)

    def connect(self):
        """A connection on which it answers; None where it ended or does not answer in time."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                connection = client.Connection(self.port)
                if connection.call(client.all_keys(b"a", b"b", 1), 30) is not None:
                    return connection
                connection.close()
            except (OSError, client.Closed):
                pass
            time.sleep(0.05)
        return None

    def last_words(self):
        with open(self.log) as log:
            lines = [line.strip() for line in log if "error" in line.lower() or "panic" in line.lower()] or ["it says nothing"]
        return lines[-1][-600:]

    def freeze(self):
        """Stops every thread of it. One that waits for the disk ends that call first."""
        os.kill(self.process.pid, signal.SIGSTOP)
        tasks = f"/proc/{self.process.pid}/task"

        def state(task):
            with open(f"{tasks}/{task}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0]
        while any(state(task) not in "Tt" for task in os.listdir(tasks)):
            time.sleep(0.001)

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Writer(threading.Thread):
    """Writes all the time and keeps, for each key, what was last acknowledged and what is under way."""

    keys = 2000
    # Mostly small values, and a few that do not fit into a page.
    sizes = [50, 300, 300, 1000, 1000, 4000, 30000]

    def __init__(self, connection, seed, found=(), revision=0, count=0):
        super().__init__(daemon=True)
        self.connection, self.random = connection, random.Random(seed)
        self.acknowledged = dict(found)  # key: (revision, value, or None where it was deleted)
        self.under_way = {}  # stream: (key, value), key None for a compaction
        self.unknown = {}  # key: value of a write that was refused
        self.busy = set()
        self.revision, self.count, self.answered, self.error = revision, count, 0, None
        self.pausing, self.paused, self.resumed = threading.Event(), threading.Event(), threading.Event()
        self.ending = self.is_cut = False

    def run(self):
        try:
            compacted = time.monotonic()
            while not self.ending:
                if self.pausing.is_set():
                    self.pause()
                if time.monotonic() - compacted > 1:
                    compacted = time.monotonic()
                    self.send(None, client.compact(max(1, self.revision - self.random.choice([0, 100, 1000]))), None)
                while len(self.under_way) < UNDER_WAY and self.send_any():
                    pass
                self.connection.flush()
                self.hear(0.5)
        except Exception as e:  # told by who waits for this thread
            # Where the power is gone, a server that ends is no fault.
            if not (self.is_cut and isinstance(e, (client.Closed, OSError))):
                self.error = e
            self.paused.set()

    def send_any(self):
        key = b"k%05d" % self.random.randrange(self.keys)
        if key in self.busy:
            return True
        if self.random.random() < 0.1:
            return self.send(key, client.delete(key), None)
        self.count += 1
        size = self.random.choice(self.sizes)
        value = b"%012d " % self.count + self.random.randbytes(64) * (size // 64)
        return self.send(key, client.put(key, value), value)

    def send(self, key, call, value):
        stream = self.connection.start(call)
        if stream is None:
            return False
        self.under_way[stream] = (key, value)
        if key is not None:
            self.busy.add(key)
        return True

    def hear(self, timeout):
        """Takes in the responses that have come; False where there was none."""
        ended = self.connection.ended(timeout)
        for stream, message in ended:
            if stream not in self.under_way:
                continue  # closed twice: etcd resets a stream that it has answered
            key, value = self.under_way.pop(stream)
            if key is None:
                continue
            if message is None:
                # It waited too long, most likely while all was stopped: whether it is done is unknown, so the key is left.
                self.unknown[key] = value
                if len(self.unknown) > self.keys // 2:
                    raise client.Closed(f"{len(self.unknown)} writes were refused")
                continue
            self.busy.discard(key)
            revision = client.revision_of(message)
            self.answered += 1
            self.revision = max(self.revision, revision)
            self.acknowledged[key] = (revision, value)
        return bool(ended)

    def pause(self):
        while self.hear(0.3):
            pass
        self.paused.set()
        self.resumed.wait()
        self.resumed.clear()

    def hold(self):
        """Has the writer take in what the server has sent, and wait. What was acknowledged, what may have happened too."""
        self.pausing.set()
        self.paused.wait()
        if self.error:
            raise self.error
        may = self.unknown | {key: value for key, value in self.under_way.values()}
        return dict(self.acknowledged), may, self.revision

    def expect_cut(self):
        """From now on the server may refuse, or end."""
        self.is_cut = True

    def release(self):
        self.pausing.clear()
        self.paused.clear()
        self.resumed.set()


def everything(connection):
    found, start = {}, b"k"
    while True:
        answer = connection.call(client.all_keys(start, b"l", 200))
        if answer is None:
            return None
        page = client.key_values(answer)
        found.update(page)
        if len(page) < 200:
            return found
        start = max(page) + b"\0"


def differences(acknowledged, may, found):
    """What the replica lacks, or has though nobody wrote it."""
    wrong = []
    for key in sorted(set(acknowledged) | set(found)):
        revision, value = acknowledged.get(key, (0, None))
        has = found.get(key)
        same = has is None if value is None else has == (revision, value)
        later = key in may and (has is None if may[key] is None else has is not None and has[1] == may[key] and has[0] > revision)
        if not same and not later:
            has = f"is at revision {has[0]}" if has else "is not there"
            wrong.append(f"{key.decode()} {has}; acknowledged: {'a put' if value is not None else 'a delete'} at {revision}")
    return wrong


def check(eddy, promised):
    """What is wrong with a replica that was started on what is left; None: nothing."""
    connection = eddy.connect()
    return "it does not start: " + eddy.last_words() if connection is None else check_on(connection, eddy, promised)[0]


def check_on(connection, eddy, promised):
    """What is wrong, None for nothing; what is there; and the newest revision."""
    acknowledged, may, revision = promised
    found = everything(connection)
    if found is None:
        return "it does not answer a range: " + eddy.last_words(), {}, revision
    wrong = differences(acknowledged, may, found)
    if wrong:
        return f"{len(wrong)} keys are wrong: " + "; ".join(wrong[:3]), found, revision
    answer = connection.call(client.put(b"z", b""))
    if answer is None:
        return "it takes no write: " + eddy.last_words(), found, revision
    newest = client.revision_of(answer)
    wrong = f"its next write has revision {newest}, {revision} was acknowledged" if newest <= revision else None
    return wrong, found, newest
