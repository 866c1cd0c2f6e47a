"""CUPTI's records of visits, made by hand."""

from __future__ import annotations

from bench.timers.attribution import Activity

SPIN = "at::cuda::spin_kernel"


class Recorder:
    """Makes the records of a visit: a stream's time, and the correlation ids of the process."""

    def __init__(self, start: int = 1_700_000_000_000_000_000, correlation: int = 100) -> None:
        self.now = start
        self.correlation = correlation
        self.records: list[Activity] = []

    def launch(
        self, name: str, ns: int, *, gap: int = 1_000, graph: int = 0, same_call: bool = False
    ) -> Activity:
        self.correlation += 0 if same_call else 3
        self.now += gap
        record = Activity(name, self.now, self.now + ns, self.correlation, graph)
        self.now += ns
        self.records.append(record)
        return record

    def prepare(self) -> None:
        self.launch(SPIN, 600)
        self.launch("bench_l2_write", 35_000)
        self.launch("bench_l2_read", 36_000)
        self.now += 50_000

    def eager(self, *kernels: tuple[str, int], gap: int = 2_000) -> None:
        self.prepare()
        for name, ns in kernels:
            self.launch(name, ns, gap=gap)

    def graph(self, *kernels: tuple[str, int], gap: int = 700) -> None:
        self.prepare()
        for i, (name, ns) in enumerate(kernels):
            self.launch(name, ns, gap=gap, graph=9, same_call=i > 0)

    def replace(self, index: int, **changes: int | str) -> None:
        self.records[index] = self.records[index]._replace(**changes)
