import os
import signal
from pathlib import Path

import pytest
import torch
from swapnet import Net
from torch import Tensor

# the tests are many small operations, for which a second thread costs more than it gives
torch.set_num_threads(1)
# a suite in the background of a shell ignores Ctrl-C, and so would the processes that tests interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data in official formats, named by XDNAS_DATA."""
    folder = os.environ.get("XDNAS_DATA")
    if not folder:
        if os.environ.get("XDNAS_REQUIRE_DATA") == "1":
            pytest.fail("XDNAS_REQUIRE_DATA=1, but XDNAS_DATA names no folder")
        pytest.skip("set XDNAS_DATA to a folder with real data")
    return Path(folder)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 10, 12, generator=torch.Generator().manual_seed(1))
