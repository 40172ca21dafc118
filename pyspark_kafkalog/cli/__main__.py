"""`python -m pyspark_kafkalog.cli` is `kafkalog`."""

import sys

from pyspark_kafkalog.cli.entry import main

sys.exit(main())
