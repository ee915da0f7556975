"""The least time a row could take on this machine: what it must do over what the machine was measured to do at most.

`rondo bench peak` measures, with all cores at once and between the rows: multiply-adds (vector f32; the fastest of the
instructions for bf16 and i8), memory read, filled and copied at several sizes, a neighbour's memory, and how long a line of
cache takes from core to core.  Each is the best of all that were taken in a run, as the machine is shared; how far that line's time
went is told, since cores of a virtual machine may come to share a cache, or to share none, while a run lasts.
"""

import math
import subprocess


class Limits:
    def __init__(self, tool):
        self.tool, self.peak, self.sizes, self.exchanges = tool, {}, {}, []

    def measure(self):
        """Once more; better values replace those there are."""
        if not self.tool.exists():
            return
        text = subprocess.run([self.tool, "bench", "peak"], capture_output=True, text=True).stdout
        for line in text.splitlines():
            name, value, *_ = line.split("\t")
            better = min if name == "exchange" else max
            if name == "exchange":
                self.exchanges.append(float(value))
            self.peak[name] = better(float(value), self.peak.get(name, float(value)))
        for name in self.peak:
            kind, _, size = name.partition(" ")
            if size:
                self.sizes[kind, int(size)] = self.peak[name]

    def between(self):
        """Nanoseconds of a line from core to core, as text; none on one core."""
        return f"a line from core to core in {min(self.exchanges):.0f} to {max(self.exchanges):.0f} ns" if self.exchanges else ""

    def rate(self, kind, size):
        """Bytes a microsecond, where that many bytes in all are in use: of the measured size that is nearest."""
        known = {s: v for (k, s), v in self.sizes.items() if k == kind}
        return known[min(known, key=lambda s: abs(math.log(s / max(size, 1))))] * 1e3 if known else math.nan

    def memory(self, read, written):
        size, both = read + written, min(read, written)
        return 2 * both / self.rate("copy", size) + (read - both) / self.rate("read", size) + (written - both) / self.rate("fill", size)

    def least(self, work):
        """Microseconds; NaN where no limit is known.  work: cases.Work."""
        if not self.peak or work is None:
            return math.nan
        parts = []
        if work.flops:
            parts.append(work.flops / self.peak[work.kind] / 1e3)
        if work.read or work.written:
            parts.append(self.memory(work.read, work.written))
        if work.peer:
            parts.append(work.peer * work.devices / self.rate("peer", work.peer * work.devices))
        if work.exchanges:
            parts.append(work.exchanges * self.peak.get("exchange", math.nan) / 1e3)
        if work.devices > self.peak["cores"]:
            return math.nan  # devices take turns: no limit of the machine's
        return max(parts) if parts else math.nan
