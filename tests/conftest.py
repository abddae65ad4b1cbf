"""One thread for torch: tests are small, and threads that spin would steal the cores from each other."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch  # noqa: E402

torch.set_num_threads(1)
