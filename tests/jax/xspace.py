"""A small reader of what jax.profiler writes: planes of an xplane.pb, with what is said once of events put to each of them."""
import pathlib
import struct


def fields(b):
    """(number, value) of a message: integers, bytes, or the 8 bytes of a double as bytes."""
    i = 0

    def varint():
        nonlocal i
        v = shift = 0
        while True:
            v |= (b[i] & 127) << shift
            shift += 7
            i += 1
            if b[i - 1] < 128:
                return v
    while i < len(b):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            n = 8 if key & 7 == 1 else varint()
            assert key & 7 in (1, 2) and i + n <= len(b)
            i += n
            yield key >> 3, b[i - n:i]


def one(b, number, default=None):
    return next((v for k, v in fields(b) if k == number), default)


def stats(b, number, names):
    """The stats among fields `number`."""
    out = {}
    for k, v in fields(b):
        if k == number:
            [(kind, value)] = [(i, x) for i, x in fields(v) if i != 1]
            out[names[one(v, 1)]] = struct.unpack("<d", value)[0] if kind == 2 else value.decode() if kind == 5 else value
    return out


class Event:
    def __init__(self, b, line_ns, names, metas):
        self.name, self.display, said = metas[one(b, 1)]
        self.begin = line_ns + one(b, 2, 0) / 1000       # ns
        self.end = self.begin + one(b, 3, 0) / 1000
        self.stats = said | stats(b, 4, names)

    def __repr__(self):
        return f"{self.name} {self.begin:.0f}..{self.end:.0f} {self.stats}"


def device_planes(path):
    """Of the xplane.pb in a folder that was traced into: {device: (stats, {line: [Event]})}."""
    files = sorted(pathlib.Path(path).glob("plugins/profile/*/*.xplane.pb"))
    out = {}
    for plane in [v for k, v in fields(files[-1].read_bytes()) if k == 1]:
        name = one(plane, 2, b"").decode()
        if not name.startswith("/device:"):
            continue
        names = {one(v, 1): one(one(v, 2), 2).decode() for k, v in fields(plane) if k == 5}
        metas = {one(v, 1): (one(one(v, 2), 2, b"").decode(), one(one(v, 2), 4, b"").decode(), stats(one(v, 2), 5, names))
                 for k, v in fields(plane) if k == 4}
        lines = {one(v, 2).decode(): [Event(e, one(v, 3), names, metas) for k, e in fields(v) if k == 4] for k2, v in fields(plane) if k2 == 3}
        out[int(name.rsplit(":", 1)[1])] = (stats(plane, 6, names), lines)
    return out
