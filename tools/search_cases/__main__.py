"""`python -m tools.search_cases lesson_02`."""

import sys

from tools.search_cases.search import main

if __name__ == "__main__":
    sys.exit(main())
