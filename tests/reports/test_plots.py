from __future__ import annotations

import subprocess
import sys

import pytest
from PIL import Image, ImageColor

from bench.suites import Row, Shape
from reports import plots, write_report
from reports.floors import FP32_BYTES, GEMMS, READS, floors_of
from reports.rows import load


@pytest.mark.parametrize(
    ("lo", "hi", "ticks"),
    [
        (0.96, 2.3, [1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2]),
        (0.37, 1.05, [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        (0.99, 1.01, [0.99, 0.995, 1.0, 1.005, 1.01]),
        (0.3, 9.0, [0.5, 1, 2, 5]),
        (0.0002, 2.0, [0.001, 0.01, 0.1, 1]),
    ],
)
def test_ratio_ticks_are_round(lo, hi, ticks):
    assert plots.ratio_ticks(lo, hi) == pytest.approx(ticks)


def test_pictures_are_readable_and_small(h200_dir, tmp_path):
    drawn, notes = plots.draw(load(h200_dir), tmp_path)
    assert [p.path for p in drawn] == ["plots/ratio.png", "plots/times.png"]
    for plot in drawn:
        with Image.open(tmp_path / plot.path) as picture:
            assert picture.width == 1200
            assert picture.info == {}
            # Fewer colours must not turn the few slower rows brown: every colour that means something stays.
            pixels = [rgb for _, rgb in picture.convert("RGB").getcolors(1 << 16)]
            for colour in (plots.BLUE, plots.VERMILION, "white"):
                wanted = ImageColor.getrgb(colour)
                assert min(max(abs(a - b) for a, b in zip(p, wanted, strict=True)) for p in pixels) <= 4
        assert (tmp_path / plot.path).stat().st_size < 200_000
    assert notes == [
        "Floors of H200: read 2.4 us + distinct inputs / 3.0 TB/s; tensor six BF16 products at 790 TFLOP/s "
        "(cold float4 sweep; BF16 torch.mm, measured)."
    ]


def test_an_unknown_device_has_no_floors_and_says_so(cpu_dir, tmp_path):
    _, notes = plots.draw(load(cpu_dir), tmp_path)
    assert notes == [
        "No floors are drawn: read and tensor rates of Example CPU @ 2.00GHz have not been measured."
    ]


def test_a_run_with_missing_cells_still_has_pictures(broken_dir):
    assert write_report(broken_dir).exists()


@pytest.mark.parametrize(
    ("T", "H", "measured"),
    [(64, 4096, 4.3), (256, 5120, 5.6), (1024, 4096, 9.5), (1024, 6144, 12.8)],
)
def test_read_floor_is_the_measured_sweep(T, H, measured):
    floors = floors_of("NVIDIA H200")
    assert floors is not None
    assert floors.read_us("fwd", T, H, 256) == pytest.approx(measured, abs=0.4)


def test_tensor_floor_is_six_products_at_the_peak():
    floors = floors_of("NVIDIA H200")
    assert floors is not None
    assert floors.tensor_us("fwd", 1024, 4096, 256) == pytest.approx(16.3, abs=0.05)
    assert floors.tensor_us("2fwd+bwd", 1024, 4096, 256) == pytest.approx(4 * 16.3, abs=0.2)


def test_floors_know_the_ops_of_the_suite():
    from bench.suites import OPS
    from bench.tensors import router_tensors

    assert set(READS) == set(GEMMS) == set(OPS)
    for op, gemms in OPS.items():
        tensors = router_tensors(Row("router", op, "eager", Shape(16, 32, 8)), "cpu")
        views = [v for kind in gemms for v in (tensors.gemm(kind).a, tensors.gemm(kind).b)]
        distinct = {v.data_ptr(): v.numel() * FP32_BYTES for v in views}
        size = {"T": 16, "H": 32, "N": 8}
        assert sum(size[a] * size[b] * FP32_BYTES for a, b in READS[op]) == sum(distinct.values())
        assert GEMMS[op] == len(gemms)


def test_matplotlib_is_not_imported_with_the_package():
    code = "import sys, reports, reports.terminal, reports.plots; print('matplotlib' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
