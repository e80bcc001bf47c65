import sys

from tools.publish import main

sys.exit(main())
