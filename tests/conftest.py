import os
from pathlib import Path

import pytest
import torch

# the tests are many small operations, for which a second thread costs more than it gives
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data in official formats, named by XDNAS_DATA."""
    folder = os.environ.get("XDNAS_DATA")
    if not folder:
        if os.environ.get("XDNAS_REQUIRE_DATA") == "1":
            pytest.fail("XDNAS_REQUIRE_DATA=1, but XDNAS_DATA names no folder")
        pytest.skip("set XDNAS_DATA to a folder with real data")
    return Path(folder)
