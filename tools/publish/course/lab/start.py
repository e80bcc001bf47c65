"""JupyterLab for this course: `jupyter lab --config=lab/start.py` opens START_HERE.md and asks nothing first."""

from pathlib import Path

here = Path(__file__).resolve().parent
c = get_config()  # noqa: F821, given by Jupyter
c.ServerApp.root_dir = str(here.parent)
c.LabApp.default_url = "/lab/tree/START_HERE.md"
c.LabApp.app_settings_dir = str(here)  # overrides.json: defaults only, your own settings stay in force
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
