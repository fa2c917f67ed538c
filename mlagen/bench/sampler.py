"""Clocks, power and temperature of a GPU: through NVML where its bindings are, else through nvidia-smi."""

from __future__ import annotations

import statistics
import subprocess
import threading
from importlib import import_module
from types import TracebackType
from typing import Any

INTERVAL = 0.03
_SMI = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
FIELDS = ("sm_mhz", "memory_mhz", "watts", "celsius")


class Sensors:
    """Reads one GPU.

    Args:
        device: its number.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._nvml: Any = None
        self._handle: Any = None
        try:
            nvml: Any = import_module("pynvml")
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByIndex(device)
            self._nvml = nvml
        except Exception:  # no bindings or no NVML library: nvidia-smi says the same, more slowly
            self._nvml = None

    @property
    def fast(self) -> bool:
        """Whether a reading takes microseconds, so that it can be taken while kernels run."""
        return self._nvml is not None

    def read(self) -> dict[str, float]:
        """sm_mhz, memory_mhz, watts and celsius now; empty where nothing can read them."""
        try:
            return self._through_nvml() if self.fast else self._through_smi()
        except Exception:  # a sensor that fails must not end a measurement
            return {}

    def _through_nvml(self) -> dict[str, float]:
        nvml, handle = self._nvml, self._handle
        return {
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }

    def _through_smi(self) -> dict[str, float]:
        command = ["nvidia-smi", f"--id={self._device}", f"--query-gpu={','.join(_SMI)}"]
        command.append("--format=csv,noheader,nounits")
        text = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        values = (float(part) for part in text.splitlines()[0].split(","))
        return dict(zip(FIELDS, values, strict=True))

    def about(self) -> dict[str, Any]:
        """Driver version, power limit and highest clocks, as far as they can be read."""
        if not self.fast:
            return {}
        nvml, handle = self._nvml, self._handle
        found: dict[str, Any] = {}
        for name, ask in (
            ("driver", nvml.nvmlSystemGetDriverVersion),
            ("power_limit_watts", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            ("most_sm_mhz", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            ("most_memory_mhz", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        ):
            try:
                value = ask()
                found[name] = value.decode() if isinstance(value, bytes) else value
            except Exception:  # see read
                continue
        return found


class Sampler:
    """Readings while a block runs, one every INTERVAL seconds."""

    def __init__(self, sensors: Sensors) -> None:
        self._sensors = sensors
        self._stop = threading.Event()
        self._readings: list[dict[str, float]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._readings.append(self._sensors.read())

    def __enter__(self) -> Sampler:
        if self._sensors.fast:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def late(self) -> dict[str, float]:
        """Medians of the last third of the readings; one reading now if there were none."""
        return medians(self._readings[-max(1, len(self._readings) // 3) :]) or self._sensors.read()


def medians(readings: list[dict[str, float]]) -> dict[str, float]:
    """The median of each field over several readings."""
    names = {name for reading in readings for name in reading}
    return {
        name: statistics.median(reading[name] for reading in readings if name in reading)
        for name in FIELDS
        if name in names
    }
