# Set-up. Run this cell first; running it again does no harm.
import subprocess
import sys
from importlib.util import find_spec
INSTALL = "git+REPOSITORY"  # empty: your instructor has not set the address
if INSTALL and "google.colab" in sys.modules and find_spec("hw_utils") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", INSTALL], check=True)
try:
    from hw_utils import Network, checks, launch, plots, simulate
    import matplotlib.pyplot as plt
    import torch
    import torch.distributed as dist
except ImportError as error:
    get = INSTALL or "git+https://ADDRESS  (your instructor has not set the course's ADDRESS: ask for it)"
    fix = f"%pip install {get}" if error.name == "hw_utils" else "%run -m hw_utils doctor"
    here = f"This kernel is {sys.executable}: choose the course's .venv"
    raise ImportError(f"{error}. {here}, or run this in a cell, then restart the kernel:  {fix}") from None
