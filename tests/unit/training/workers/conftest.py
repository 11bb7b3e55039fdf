"""A Ray for the tests of one file."""

import gc
import os
from collections.abc import Iterator
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """A Ray of two CPUs, whose object store is small and is not relieved to disk."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_worker_niceness="0")
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    failure = ""
    try:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=80 * 1024**2,
            _system_config={"automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 1.0},
        )
    except Exception as error:  # Ray itself waits for no more than 30 s
        failure = str(error)
    if failure:
        _leave(ray)
        pytest.skip(f"Ray does not start on this machine now: {failure}")
    yield
    _leave(ray)


def _leave(ray: Any) -> None:
    """End Ray, which lets go of its processes without waiting for them."""
    with catch_warnings():
        simplefilter("ignore", ResourceWarning)
        ray.shutdown()
        gc.collect()
