# Two commands: `make up` and `make test`. They install everything into this folder or the user's cache.
#
#   make up                      a real answer in the browser: install, start, start again what ends; Ctrl-C stops all of it
#   make up ENGINE=scripted      without a model engine (or ENGINE=http://host:port for any OpenAI-compatible server)
#   make up ARGS="--workers 2"   further options of `tailrace up` (--verbose prints all logs; --port, --push-port and --data for a second one)
#   make faults SECONDS=1800     faults of every kind on real parts, judged by `tailrace verify` (SEED=… repeats a run; docs/verify.md)
#   make attacks                 attacks by clients on a deployment, with what another user and the memory feel of them (tests/README.md)
#   make clients                 unmodified clients from their registries on a deployment (docs/clients.md); NAMES="codex langchain" for some
#   make bench                   measure it beside `vllm serve`, and each part alone (docs/measurements/README.md); `make bench-quick` to see that it works
#   make overload                two, five and ten times more requests than there is capacity for, and what each class feels of it (docs/measurements/README.md)
#   make pipelines               a pipeline over 10,000 records while all it rests on is killed, and a replay (docs/pipelines.md)
#   make pipelines-stores        the same of one that puts 1,500 records into a vector store
#   make soak MINUTES=30         what grows under load: memory, files, tasks and keys of every process, with slopes
#   make analytics               Flink SQL over usage records beside the same queries in Python, with its processes killed (docs/analytics.md)
#   make sbom                    a bill of all that is locked (CycloneDX); `make licences` checks their licences, `make audit` asks what is vulnerable
#   make test                    every tier, or TIERS="unit services"; `make check` is the quick one, for every save
#   make nightly                 the tests that take too long for that: every fault alone, more engines, browsers, attacks and sizes; TIERS as above

SHELL := /bin/bash
.DEFAULT_GOAL := help
# Without compiled bytecode every start of an engine compiles 8 s of source again, in both of its processes.
unexport PYTHONDONTWRITEBYTECODE
ENGINE ?= $(or $(TAILRACE_ENGINE),vllm)
ARGS ?=
BIN := .venv/bin

.PHONY: help install up down check test nightly fmt clean lock load attacks clients clients-lock faults bench bench-quick bench-tools soak faults-engine overload pipelines pipelines-stores sbom audit licences analytics

help:
	@sed -n 's/^#   \{0,1\}//p' Makefile

install:
	@scripts/install.sh --engine "$(ENGINE)"

up: install
	@exec $(BIN)/tailrace up --engine "$(ENGINE)" $(ARGS)

# ARGS="--data FOLDER" for one in another folder.
down:
	@$(BIN)/tailrace down $(ARGS)

# Format, lint, types, import contracts, security lint, unit tests, manifests, front end: two to four minutes.
check: install
	@$(BIN)/python scripts/check.py

# With the benchmark's tools, which the test of its plots needs.
test: install bench-tools
	@$(BIN)/python scripts/test.py $(TIERS)

nightly: install bench-tools
	@$(BIN)/python scripts/test.py --nightly $(TIERS)

# SECONDS is a variable of the shell too (bash counts in it), so only one given on the command line counts.
faults: install
	@$(BIN)/pytest -q -m "" tests/faults/test_rollback.py
	@$(BIN)/python -m tests.faults --seconds $(if $(filter command line,$(origin SECONDS)),$(SECONDS),1800) $(if $(SEED),--seed $(SEED))

# In full size, with bounds on what another user and the memory may feel; `make test` runs them small and without.
attacks: install
	@$(BIN)/python -m tests.attacks

# Each client in an environment of its own below .clients, made from its lock. With all of them, docs/clients.md is written anew.
clients: install
	@$(BIN)/python -m tests.clients $(NAMES)

# Anew from what tests/clients asks for; other than for Python, versions stand in package.json, go.mod and pom.xml.
clients-lock: install
	@$(BIN)/python -m tests.clients --lock

# Workers with the real engine, killed in mid-answer KILLS times (about 40 s each: an engine starts after every one).
faults-engine: install
	@$(BIN)/python -m tests.faults.real_engine --kills $(or $(KILLS),50) $(if $(SEED),--seed $(SEED))

fmt:
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Exact versions with checksums, after a change of dependencies.
lock:
	@locks/compile.sh

sbom: install
	@$(BIN)/python scripts/supply_chain.py bill --out test-results/sbom.json

licences: install
	@$(BIN)/python scripts/supply_chain.py licences

# Exits with 3 when it did not run.
audit: install
	@$(BIN)/python scripts/supply_chain.py audit

# Load on what `make up` started: users that converse, drop, resume and cancel; fails on a lost or doubled token.
load:
	@$(BIN)/locust -f locustfile.py --headless -u 20 -r 5 -t 30s --host http://127.0.0.1:8000 --push-host http://127.0.0.1:8001

# Needs an idle machine. One suite: `.venv/bin/python -m bench NAME [--quick]`; results in bench/out.
bench: install bench-tools
	@$(BIN)/python -m bench

bench-quick: install bench-tools
	@$(BIN)/python -m bench --quick --out bench/out/quick

# What grows: locust on the scripted engine for MINUTES after HISTORY ended responses; memory, files, tasks and keys of every process.
soak: install bench-tools
	@$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),30) --history $(or $(HISTORY),1000000)

# Results and a plot in bench/out; SECONDS is the length of each of seven loads.
overload: install bench-tools
	@$(BIN)/python -m bench.overload $(if $(filter command line,$(origin SECONDS)),--seconds $(SECONDS))

# Judged by the topics; RECORDS for fewer.
pipelines: install
	@$(BIN)/python -m tests.pipelines $(if $(RECORDS),--records $(RECORDS))

pipelines-stores: install
	@$(BIN)/python -m tests.pipelines --stores $(if $(RECORDS),--records $(RECORDS))

# Added to the development environment without changing it: the lock has the same versions.
bench-tools: install
	@$(BIN)/python -c "import matplotlib" 2>/dev/null || .tools/bin/uv pip install --quiet --require-hashes --python $(BIN)/python -r locks/requirements-bench.lock

# SECONDS is the length of each of three loads.
analytics: install
	@$(BIN)/python -m bench.analytics $(if $(filter command line,$(origin SECONDS)),--seconds $(SECONDS))

# What was built here. The user's cache (model, Kafka, data) stays: `rm -rf ~/.cache/tailrace` removes it.
clean:
	@rm -rf .venv .venv-engine .tools .clients frontend/node_modules frontend/dist frontend/dist-admin *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache test-results bench/out
