from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import bench.environment as env
from bench.environment import EnvironmentRefused

CPUINFO = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8481C\n"


@pytest.mark.parametrize(
    "name",
    [
        "CUBLAS_EMULATE_SINGLE_PRECISION",
        "CUBLAS_EMULATION_STRATEGY",
        "CUBLAS_EMULATE_DOUBLE_PRECISION",
        "NVIDIA_TF32_OVERRIDE",
    ],
)
def test_variables_that_change_a_rival_are_refused(name: str) -> None:
    with pytest.raises(
        EnvironmentRefused, match=f"{name}=0 is set and would silently change .*; unset {name}$"
    ):
        env.check_environment("cpu", {name: "0", "PATH": "/bin"})


def test_the_process_s_own_variables_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_EMULATE_SINGLE_PRECISION", "1")
    with pytest.raises(EnvironmentRefused):
        env.check_environment("cpu")


def test_a_plain_environment_has_no_flags() -> None:
    assert env.check_environment("cpu", {"PATH": "/bin", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}) == ()


def test_mps_is_refused() -> None:
    env.refuse_mps({}, ["bash", "python3"])
    with pytest.raises(EnvironmentRefused, match="CUDA_MPS_PIPE_DIRECTORY=/tmp/mps is set: under MPS"):
        env.refuse_mps({"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}, [])
    with pytest.raises(EnvironmentRefused, match="nvidia-cuda-mps is running"):
        env.refuse_mps({}, ["bash", "nvidia-cuda-mps-server"[:15]])


@pytest.mark.parametrize(
    ("pids", "own_context", "others"),
    [
        ([], False, ()),
        ([7], True, ()),  # ourselves
        ([7, 9], True, (9,)),
        ([9], False, (9,)),  # we have no context yet: it is a stranger
        ([9], True, ()),  # we have one and are not listed: it is us under another number
        ([9, 11], True, (11,)),
    ],
)
def test_strangers(pids: list[int], own_context: bool, others: tuple[int, ...]) -> None:
    assert env.strangers(pids, 7, own_context) == others


class FakeNvml:
    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self, mig: int | None = None, pids: tuple[int, ...] = ()) -> None:
        self.mig, self.pids = mig, pids

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if self.mig is None:
            raise self.NVMLError("not supported")
        return [self.mig, self.mig]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in self.pids]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setattr(env, "nvml", lambda: fake)
    monkeypatch.setattr(env, "nvml_handle", lambda device: "handle")
    monkeypatch.setattr(env, "_commands", lambda: ["bash"])
    monkeypatch.setattr(env, "_context_exists", lambda index: False)
    return fake


def test_mig_is_refused(nvml: FakeNvml) -> None:
    nvml.mig = 0
    assert env.check_environment("cuda", {}) == ()
    nvml.mig = 1
    with pytest.raises(EnvironmentRefused, match="cuda is in MIG mode"):
        env.check_environment("cuda", {})


def test_other_processes_are_a_flag(nvml: FakeNvml) -> None:
    nvml.pids = (os.getpid(),)
    assert env.check_environment("cuda", {}) == ()
    nvml.pids = (os.getpid() + 1,)
    assert env.check_environment("cuda", {}) == ("shared-gpu",)


def test_arch_names() -> None:
    assert [env.arch_name(*c) for c in ((8, 0), (8, 9), (9, 0), (10, 3))] == [
        "sm_80",
        "sm_89",
        "sm_90a",
        "sm_103a",
    ]


def test_the_cpu_is_described() -> None:
    device = env.describe_device("cpu")
    assert (
        device.arch == "cpu"
        and device.name
        and device.sms == torch.get_num_threads()
        and device.memory_gb > 0
    )
    assert (device.uuid, device.driver, device.power_limit_w) == ("", "", None)
    assert env.cpu_name(CPUINFO) == "Intel(R) Xeon(R) Platinum 8481C"
    assert env.cpu_name("processor: 0\n") == ""


def test_versions_name_what_is_installed() -> None:
    found = env.versions()
    assert found["torch"] == torch.__version__
    assert {"python", "numpy"} <= found.keys()
    assert all(isinstance(v, str) and v for v in found.values())


def test_recorded_variables_bear_on_results_and_are_no_secrets() -> None:
    given = {
        "CUDA_VISIBLE_DEVICES": "0",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "OMP_NUM_THREADS": "2",
        "CAKE_CACHE_DIR": "/tmp/c",
        "TORCH_LOGS": "all",
        "NVIDIA_API_KEY": "nvapi-1",
        "TORCH_AUTH_HEADER": "x",
        "CAKE_token": "x",
        "HOME": "/root",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    expected = [
        "CAKE_CACHE_DIR",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "TORCH_LOGS",
    ]
    assert list(env.environment(given)) == expected


def _git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True)


def test_git_state(tmp_path: Path) -> None:
    assert env.git_state(tmp_path / "absent") == {}
    root = tmp_path / "project"
    root.mkdir()
    _git(root, "init", "-q")
    assert env.git_state(root) == {}  # no commit yet
    (root / "a").write_text("1")
    _git(root, "add", "a")
    _git(root, "commit", "-q", "-m", "a")
    clean = env.git_state(root)
    assert len(clean["commit"]) == 40 and clean["dirty"] == "no"
    (root / "a").write_text("2")
    assert env.git_state(root) == {**clean, "dirty": "yes"}
    inside = root / "site-packages"
    inside.mkdir()
    assert env.git_state(inside) == {}  # installed inside someone else's repository


def test_git_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert env.git_state() == {}
    monkeypatch.setenv("CAKE_COMMIT", "0123abc")
    assert env.git_state() == {"commit": "0123abc"}


@pytest.mark.gpu
def test_a_gpu_is_described() -> None:
    device = env.describe_device("cuda")
    assert device.arch.startswith("sm_") and device.sms > 0 and device.l2_mb > 0 and device.memory_gb > 1
    assert device.uuid.startswith("GPU-") and device.driver and device.power_limit_w
    assert {"driver", "cuda-driver", "cuda-runtime"} <= env.versions().keys()


@pytest.mark.gpu
def test_the_gpu_s_environment_is_fit() -> None:
    torch.zeros(1, device="cuda")
    assert set(env.check_environment("cuda", {})) <= {"shared-gpu"}
