# Everything runs in .venv, which `make setup` makes. On Debian the missing system packages are
# installed when this is run as root.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DEMO := $(VENV)/.demo
CLIENTS := $(VENV)/clients
QUEEN_CLIENTS := 0.15.0 2.6.0
AMQPLIB := 2.3.1
AXE := 4.10.3
COVERAGE_FLOOR := 92

.PHONY: setup test test-all coverage demo bench soak lint docs lock audit clean

PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

# requirements.lock has the hashes of the files for one platform; HASHES=off installs without them.
HASHES ?= $(shell $(PYTHON) -c 'import platform as p, sys; print("on" if (p.system(), p.machine(), \
	p.python_implementation(), *sys.version_info[:2]) == ("Linux", "x86_64", "CPython", 3, 11) else "off")')

setup: $(STAMP) $(CLIENTS)/.ready

$(BIN)/pip:
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
		echo "installing python3-venv"; \
		apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }
	@java -version >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
		echo "installing Java for Spark"; apt-get update -qq; \
		apt-get install -y -qq openjdk-17-jre-headless || apt-get install -y -qq default-jre-headless; }; } \
		|| echo "Java is missing: Spark and its tests need Java 17 or later"

# What the demo runs, without the tools and services of the tests.
$(DEMO): pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) -e ".[spark]"
	@touch $@

$(STAMP): pyproject.toml constraints.txt requirements.lock | $(BIN)/pip
	@PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null || { [ "$$(id -u)" = 0 ] \
		&& command -v apt-get >/dev/null && { echo "installing pgbouncer for the tests"; \
		apt-get update -qq; apt-get install -y -qq pgbouncer; }; } \
		|| echo "pgbouncer is missing: the tests behind a pooler are left out"
	@test -x /usr/lib/rabbitmq/bin/rabbitmq-server || { [ "$$(id -u)" = 0 ] \
		&& command -v apt-get >/dev/null && { echo "installing rabbitmq-server for the tests"; \
		apt-get update -qq; apt-get install -y -qq --no-install-recommends rabbitmq-server; }; } \
		|| echo "rabbitmq-server is missing: the comparison with RabbitMQ is left out"
	@command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
		echo "installing Chromium for the tests of the dashboard"; apt-get update -qq; \
		apt-get install -y -qq --no-install-recommends chromium chromium-driver; }; } \
		|| echo "Chromium is missing: the tests of the dashboard in a browser are left out"
	@cc --version >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
		echo "installing a C compiler for the power-cut tests"; apt-get update -qq; \
		apt-get install -y -qq gcc libc6-dev; }; } \
		|| echo "A C compiler (cc) is missing: the power-cut tests of several processes need it"
	@node --version >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
		echo "installing Node.js for pyright"; apt-get update -qq; \
		apt-get install -y -qq --no-install-recommends nodejs npm; }; } \
		|| echo "Node.js is missing: the test of the types with pyright needs it"
	@if [ "$(HASHES)" = on ]; then echo "installing requirements.lock, checking hashes"; \
		$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock; \
	else echo "requirements.lock has no hashes for this platform: versions are pinned, files are not checked"; fi
	$(PIP) -e ".[all,dev]"
	@touch $(STAMP) $(DEMO)

# Clients of other queues that the server is tested with, each in a folder of its own.
$(CLIENTS)/.ready: $(STAMP)
	@for version in $(QUEEN_CLIENTS); do \
		$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade \
			--target $(CLIENTS)/queen-mq-$$version queen-mq==$$version || exit 1; \
	done
	@command -v npm >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
		echo "installing npm for amqplib"; apt-get update -qq; \
		apt-get install -y -qq --no-install-recommends npm; }; } || true
	@npm install --silent --no-fund --no-audit --prefix $(CLIENTS)/amqplib amqplib@$(AMQPLIB) \
		|| echo "amqplib is missing: its test is left out"
	@npm install --silent --no-fund --no-audit --prefix $(CLIENTS)/axe-core axe-core@$(AXE) \
		|| echo "axe-core is missing: the accessibility of the dashboard is not tested"
	@touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests start hundreds of processes. Without compiled files each of them compiles the package, which
# takes twice as long as to run; an environment may ask for none.
export PYTHONDONTWRITEBYTECODE :=

PYTEST := $(BIN)/pytest -n 2 --dist loadgroup

# The inner ring: a test of every guarantee.
test: lint
	$(PYTEST) -m "not outer and not soak"

# The outer ring: the rest, mostly the same semantics on every store and transport.
test-all: setup
	$(PYTEST) -m "outer and not soak"

# Lines of src that the inner ring runs in the test processes; processes they start are not counted.
coverage: setup
	$(PYTEST) -m "not outer and not soak and not untraced" --cov --cov-report=term --cov-fail-under=$(COVERAGE_FLOOR)

demo: $(DEMO)
	$(BIN)/python -m ackflow.demo

bench: setup
	@{ command -v wrk && command -v redis-server; } >/dev/null || { [ "$$(id -u)" = 0 ] \
		&& command -v apt-get >/dev/null && { echo "installing wrk and Redis to compare with"; \
		apt-get update -qq; apt-get install -y -qq --no-install-recommends wrk redis-server; }; } \
		|| echo "wrk or redis-server is missing: some measurements are left out"
	$(BIN)/python -m bench

soak: setup
	$(BIN)/pytest -m soak --timeout 7200
	$(BIN)/python tests/mutants.py

# The documentation as a site in site/; nothing is loaded from other hosts.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Writes requirements.lock for the versions in constraints.txt.
lock: $(BIN)/pip
	$(BIN)/python tools/lock.py

# Known vulnerabilities of the locked versions. --strict: a package that was not looked up is a failure.
audit: requirements.lock
	@$(PYTHON) -m venv $(VENV)/audit && $(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	@$(VENV)/audit/bin/pip-audit --strict --disable-pip --require-hashes -r requirements.lock || { \
		echo "make audit: a vulnerability was found, or a version could not be looked up. The vulnerability"; \
		echo "service is not part of the package registry: it must be reachable from this machine."; exit 1; }

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
