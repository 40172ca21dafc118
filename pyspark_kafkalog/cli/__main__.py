"""`python -m pyspark_kafkalog.cli` is `kafkalog`."""

import sys

from pyspark_kafkalog.cli import main

sys.exit(main())
