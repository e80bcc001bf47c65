"""nbgrader's settings for this course; `nbgrader` and the formgrader read them when started in this folder."""

from pathlib import Path

from hw_grader.environment import put_on_path
from hw_grader.feedback import FeedbackExporter
from hw_grader.nbgrader_hook import GradeInSandbox, is_sandboxed, refuse_links
from hw_grader.preprocessors import TolerantExporter, grade_steps, sanitize_steps
from hw_grader.stamp import release_steps

put_on_path()
c = get_config()  # noqa: F821  (given by nbgrader)

c.CourseDirectory.course_id = "distributed-deep-learning"
c.CourseDirectory.root = str(Path(__file__).resolve().parent)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"

c.GenerateAssignment.preprocessors = release_steps()

c.Autograde.exporter_class = TolerantExporter
c.Autograde.sanitize_preprocessors = sanitize_steps()
c.Autograde.autograde_preprocessors = grade_steps(GradeInSandbox if is_sandboxed() else None)
c.Autograde.pre_convert_hook = refuse_links
c.GenerateFeedback.exporter_class = FeedbackExporter
c.Execute.timeout = 600  # seconds a cell; some train a network
