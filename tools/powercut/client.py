"""A gRPC client of etcd's KV service, just large enough for the power cuts: HTTP/2 and protobuf by hand, no library.

It keeps many requests under way on one connection. What a response says beside its message (the status) is not read:
a call that failed has no message.
"""
import socket
import struct

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
BIG = 1 << 30
FRAME_MAX = 16384


def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number, value):
    """A field of a message: an int as a varint, bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(message):
    """(number, value) for each field of a message."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
        elif tag & 7 == 2:
            size = number()
            yield tag >> 3, message[at:at + size]
            at += size
        else:
            raise ValueError(f"a field of wire type {tag & 7}")


def revision_of(response):
    """The revision in a response's header."""
    header = dict(fields(response)).get(1, b"")
    return dict(fields(header)).get(3, 0)


def key_values(response):
    """{key: (mod revision, value)} of a range response."""
    found = {}
    for number, value in fields(response):
        if number == 2:
            kv = dict(fields(value))
            found[kv[1]] = (kv[3], kv.get(5, b""))
    return found


def put(key, value):
    return "/etcdserverpb.KV/Put", field(1, key) + field(2, value)


def delete(key):
    return "/etcdserverpb.KV/DeleteRange", field(1, key)


def compact(revision):
    return "/etcdserverpb.KV/Compact", field(1, revision)


def all_keys(start, end, limit):
    return "/etcdserverpb.KV/Range", field(1, start) + field(2, end) + field(3, limit)


class Closed(Exception):
    """The server closed the connection."""


class Connection:
    def __init__(self, port, timeout=30):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.heads = {}
        self.next = 1
        self.messages = {}  # by stream, what has come of its response
        self.unread = b""
        self.received = 0
        self.window = 65535  # what may be sent before the server gives more
        self.out = bytearray(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.frame(SETTINGS, 0, 0, struct.pack(">HI", 4, BIG))
        self.frame(WINDOW, 0, 0, struct.pack(">I", BIG))

    def frame(self, kind, flags, stream, body):
        self.out += struct.pack(">IBBI", len(body), kind, flags, stream)[1:] + body

    def head(self, path):
        if path not in self.heads:
            block = b"\x83\x86"  # :method POST, :scheme http
            for name, value in ((":path", path), (":authority", "localhost"), ("content-type", "application/grpc"), ("te", "trailers")):
                block += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            self.heads[path] = block
        return self.heads[path]

    def start(self, call):
        """Queues a call, to be sent by `flush`. Its stream, or None while the server takes no more bytes."""
        path, message = call
        body = b"\0" + struct.pack(">I", len(message)) + message
        if len(body) > self.window:
            return None
        self.window -= len(body)
        stream, self.next = self.next, self.next + 2
        self.frame(HEADERS, END_HEADERS, stream, self.head(path))
        for at in range(0, len(body), FRAME_MAX):
            self.frame(DATA, END_STREAM if at + FRAME_MAX >= len(body) else 0, stream, body[at:at + FRAME_MAX])
        return stream

    def flush(self):
        self.socket.sendall(self.out)
        self.out.clear()

    def ended(self, timeout):
        """[(stream, message, or None where the call failed)] of the calls that ended, [] after `timeout` seconds."""
        self.socket.settimeout(timeout)
        try:
            chunk = self.socket.recv(1 << 20)
        except TimeoutError:
            return []
        except OSError as e:
            raise Closed(str(e)) from e
        if not chunk:
            raise Closed("the server closed the connection")
        self.socket.settimeout(30)
        self.unread += chunk
        done, at = [], 0
        while len(self.unread) - at >= 9:
            size = int.from_bytes(self.unread[at:at + 3], "big")
            if len(self.unread) - at < 9 + size:
                break
            kind, flags, stream = struct.unpack(">BBI", self.unread[at + 3:at + 9])
            self.take(kind, flags, stream, self.unread[at + 9:at + 9 + size], done)
            at += 9 + size
        self.unread = self.unread[at:]
        if self.out:
            self.flush()
        return done

    def take(self, kind, flags, stream, body, done):
        if kind == DATA:
            self.messages[stream] = self.messages.get(stream, b"") + body
            self.received += len(body)
            if self.received > BIG // 2:
                self.frame(WINDOW, 0, 0, struct.pack(">I", self.received))
                self.received = 0
        elif kind == SETTINGS and not flags & ACK:
            self.frame(SETTINGS, ACK, 0, b"")
        elif kind == PING and not flags & ACK:
            self.frame(PING, ACK, 0, body)
        elif kind == WINDOW and stream == 0:
            self.window += int.from_bytes(body, "big")
        elif kind == GOAWAY:
            raise Closed(f"the server said goodbye: error {int.from_bytes(body[4:8])} {body[8:].decode()}")
        if kind == RESET or (kind in (DATA, HEADERS) and flags & END_STREAM):
            message = self.messages.pop(stream, None)
            done.append((stream, message[5:] if message else None))

    def call(self, call, timeout=30):
        """One call, with nothing else under way. Its response, None where it failed."""
        stream = self.start(call)
        self.flush()
        while True:
            ended = self.ended(timeout)
            for which, message in ended:
                if which == stream:
                    return message
            if not ended and timeout < 1:
                return None

    def close(self):
        self.socket.close()
