# Set-up. Run this cell first; running it again does no harm.
import subprocess
import sys
from importlib.util import find_spec
INSTALL = "git+REPOSITORY"
if "google.colab" in sys.modules and find_spec("hw_utils") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", INSTALL], check=True)
try:
    import matplotlib.pyplot as plt
    import torch
    import torch.distributed as dist
    from hw_utils import Network, checks, launch, plots, simulate
except ImportError as error:
    fix = f"%pip install {INSTALL}" if error.name == "hw_utils" else "%run -m hw_utils doctor"
    raise ImportError(f"{error}. Run this in a cell, then restart the kernel:  {fix}") from None
