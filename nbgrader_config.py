"""nbgrader's settings for this course; `nbgrader` and the formgrader read them when started in this folder."""

from pathlib import Path

from hw_grader.course.feedback import FeedbackExporter
from hw_grader.course.gradebook import prepare_nbgrader
from hw_grader.course.nbgrader_steps import TolerantExporter, grade_steps, ignored_but, page_settings, sanitize_steps
from hw_grader.course.trusted_verdict_step import GradeInSandbox, is_sandboxed, refuse_links
from hw_grader.notebook.release_steps import release_steps
from hw_grader.term.collect import KitZips
from hw_grader.term.lms_csv import EmptyWhereUngraded

prepare_nbgrader()
c = get_config()  # noqa: F821  (given by nbgrader)

c.CourseDirectory.course_id = "distributed-deep-learning"
c.CourseDirectory.root = str(Path(__file__).resolve().parent)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"

c.GenerateAssignment.preprocessors = release_steps()

# nbgrader zip_collect: STUDENT/LESSON/name.ipynb, as in the zips of `python -m hw_utils submit`.
c.ZipCollectApp.collector_plugin = KitZips
c.FileNameCollectorPlugin.named_regexp = (
    r".*/(?P<student_id>[A-Za-z0-9][\w.@-]*)/(?P<assignment>\d\d_\w+)/(?P<file_id>[^/]+\.ipynb)$"
)

c.Autograde.exporter_class = TolerantExporter
c.Autograde.sanitize_preprocessors = sanitize_steps()
c.Autograde.autograde_preprocessors = grade_steps(GradeInSandbox if is_sandboxed() else None)
c.Autograde.pre_convert_hook = refuse_links
c.GenerateFeedback.exporter_class = FeedbackExporter
c.ExportApp.plugin_class = EmptyWhereUngraded
c.Execute.timeout = 600  # seconds a cell; some train a network

for name, value in page_settings().items():  # of the page of one submission
    setattr(c.HTMLExporter, name, value)
# The formgrader also serves what lies beside a notebook: nothing that a browser would run comes along.
c.CourseDirectory.ignore = ["__pycache__", "feedback"]
c.CourseDirectory.ignore += ignored_but(".ipynb", ".txt", ".csv", ".png", ".jpg", ".json", ".npz", ".pt")
