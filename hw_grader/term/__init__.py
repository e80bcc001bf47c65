"""A term: the class list, what comes out of a learning management system (LMS), due dates, and what goes back into it.

Stands on course, which grades, and notebook. `python -m hw_grader collect`, `export` and `feedback` are its front.
"""
