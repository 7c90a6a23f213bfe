# Quartet. `make` or `make help` lists the targets.

SHELL := /bin/bash
GO    ?= go

# Tools are built once for all clones of one user: their directory has the hash of what they are built from.
TOOL_SOURCES := tools/go.mod tools/go.sum $(wildcard tools/*/*.go)
TOOLS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/quartet/tools-$(shell cat $(TOOL_SOURCES) | cksum | tr ' ' -)

ARGS  ?=
FUZZTIME ?= 20s

# What the binary is built with. Without the symbol table, DWARF and gRPC's
# trace pages (which nothing serves) it is half as large; stack traces, profiles
# and the version inside stay whole. make build STRIP= keeps it for a debugger.
TAGS  ?= grpcnotrace
STRIP ?= -s -w

BUF    := tools/buf/node_modules/.bin/buf
LINTER := $(TOOLS)/golangci-lint
GEN    := $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc $(TOOLS)/protoc-gen-grpc-gateway \
          $(TOOLS)/protoc-gen-openapiv2 $(TOOLS)/openapi3 $(TOOLS)/toolfields

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

# The version stands in pkg/version/VERSION. The go command records revision and date of
# a clone by itself; where there is none (an image, an archive) they are given here.
REVISION ?=
DATE     ?=
STAMP    := $(if $(REVISION),-X quartet/pkg/version.revision=$(REVISION)) $(if $(DATE),-X quartet/pkg/version.date=$(DATE))

# What only reads the code is built like the binary, so that nothing is compiled twice.
STATIC := CGO_ENABLED=0 GOFLAGS='-trimpath -tags=$(TAGS)'

# What tests run is built in one way as well. The providers' SDKs, which only quartet run needs and which take as long
# to compile as everything else, stay away; make models tests what uses them.
TESTED := CGO_ENABLED=0 GOFLAGS='-trimpath -tags=$(TAGS),nomodels'

.PHONY: build
build: ## Build bin/quartet, static
	$(STATIC) $(GO) build -ldflags '$(STRIP) $(STAMP)' -o bin/quartet ./cmd/quartet

# What is weaker elsewhere than on Linux stands in docs/platforms.md. PLATFORM_ENV=QUICK compiles
# in a third of the time, what is not to be shipped: see QUICK below.
# On Windows there are only the command line, MCP and the runner.
PLATFORMS    := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64
PLATFORM_ENV ?= STATIC

# What is in the binary by its own build information, with versions and hashes. The tool is run by its
# version, so that its dependencies are in no go.mod here.
CYCLONEDX := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

.PHONY: sbom
sbom: build ## Write bin/quartet.cdx.json: the modules in bin/quartet as a CycloneDX SBOM
	$(GO) run $(CYCLONEDX) bin -json -std -version "v$$(cat pkg/version/VERSION)" -output bin/quartet.cdx.json bin/quartet
	@echo "wrote bin/quartet.cdx.json"

.PHONY: vulnerabilities
vulnerabilities: ## Scan what the product compiles for known vulnerabilities; says so where the database cannot be reached
	GO=$(GO) tools/vulnerabilities.sh

.PHONY: platforms
platforms: ## Build bin/quartet-OS-ARCH for every supported platform, and vet what only some of them compile
	@set -e; for p in $(PLATFORMS); do \
	  echo "$$p"; \
	  GOOS=$${p%/*} GOARCH=$${p#*/} $($(PLATFORM_ENV)) $(GO) build -ldflags '$(STRIP) $(STAMP)' -o bin/quartet-$${p%/*}-$${p#*/}$$(case $$p in windows/*) echo .exe;; esac) ./cmd/quartet; \
	done
	GOOS=darwin GOARCH=arm64 $($(PLATFORM_ENV)) $(GO) vet ./pkg/proctree ./pkg/lease ./services/worker ./services/doctor ./services/work

# QUICK compiles in a third of the time, what is not to be shipped.
.PHONY: platforms-check
platforms-check:
	$(MAKE) --no-print-directory platforms PLATFORM_ENV=QUICK

# The program that makes a release, and the tests of the chart, are modules of their own: the product's go.mod has none of their
# libraries, and a library of theirs that is raised does not build the other tools again.
.PHONY: release
release: ## Write dist/: archives, deb, rpm, SBOM, image definitions and checksums of this version; ARGS for the program, as ARGS='-platforms linux/amd64'
	$(STATIC) $(GO) build -C tools/release -o $(CURDIR)/bin/release .
	bin/release -go $(GO) $(ARGS)

.PHONY: release-check
release-check: ## Make a release of this platform twice, install and run it
	cd tools/release && $(STATIC) $(GO) test -count=1 -timeout 20m ./...

.PHONY: helm
helm: ## Lint the Helm chart and start what it configures
	cd tests/helm && $(QUICK) $(GO) test -count=1 -timeout 20m ./...

.PHONY: generate
generate: $(GEN) $(BUF) ## Write pkg/pb, deploy/openapi, the generated documents and the types of the console
	$(generate-into)
	mkdir -p pkg/pb deploy/openapi
	rm -rf pkg/pb/quartet && cp -r bin/.gen/pkg/pb/quartet pkg/pb/
	cp bin/.gen/deploy/openapi/* deploy/openapi/
	cp bin/.gen/tool_fields.json services/agent/tools/
	REWRITE=1 $(TESTED) $(GO) test -count=1 ./tests/generated ./tests/arch -run "TestGeneratedDocumentsAreFresh|TestMetricsAreDocumented"

.PHONY: generate-check
generate-check: $(GEN) $(BUF) ## Regenerate beside the tree and want no difference
	$(generate-into)
	diff -r bin/.gen/pkg/pb/quartet pkg/pb/quartet
	for f in bin/.gen/deploy/openapi/*; do diff $$f deploy/openapi/$$(basename $$f) || exit 1; done
	diff bin/.gen/tool_fields.json services/agent/tools/tool_fields.json
	$(TESTED) $(GO) test ./tests/generated

# buf.gen.yaml says what is generated; the rest is made of that, or of the compiled protos with their comments.
define generate-into
	rm -rf bin/.gen
	PATH="$(TOOLS):$$PATH" $(BUF) generate -o bin/.gen
	$(BUF) build --as-file-descriptor-set -o bin/.gen/image.binpb
	$(TOOLS)/openapi3 bin/.gen/deploy/openapi/quartet.swagger.json bin/.gen/deploy/openapi/quartet.openapi.json
	$(TOOLS)/toolfields bin/.gen/image.binpb bin/.gen/tool_fields.json
endef

# The pages of the console are TypeScript, which Node only checks: the bundler is a Go module. The bundle is
# committed, so that a build needs neither; the same sources and packages give the same bytes.
CONSOLE := services/console/ui

.PHONY: console
console: $(TOOLS)/console $(CONSOLE)/node_modules ## Check the sources of the console and write services/console/dist
	cd $(CONSOLE) && node_modules/.bin/tsc --noEmit
	$(TOOLS)/console $(CONSOLE) services/console/dist

.PHONY: console-check
console-check: $(TOOLS)/console $(CONSOLE)/node_modules ## Bundle the console beside the tree and want no difference
	cd $(CONSOLE) && node_modules/.bin/tsc --noEmit
	$(TOOLS)/console $(CONSOLE) bin/.console
	diff -r bin/.console services/console/dist

# The API of the current minor version, as it was when that version began. What breaks it
# needs a new minor version.
MINOR     := $(shell cut -d. -f1,2 pkg/version/VERSION)
API_IMAGE := deploy/api/quartet-$(MINOR).binpb

.PHONY: api-image
api-image: $(BUF) ## Keep today's API as that of the current minor version
	mkdir -p deploy/api
	$(BUF) build --exclude-source-info -o $(API_IMAGE)

.PHONY: lint
lint: $(BUF) $(LINTER) ## Lint proto and Go
	$(BUF) lint
	@test -f $(API_IMAGE) || { echo "$(API_IMAGE) is missing: a new minor version needs one (make api-image)"; exit 1; }
	$(BUF) breaking --against $(API_IMAGE)
	$(STATIC) $(LINTER) run ./...
	cd bench && $(QUICK) $(LINTER) run ./...
	cd bench/rivals && $(STATIC) $(LINTER) run ./...

.PHONY: fmt
fmt: $(BUF) $(LINTER) ## Format Go and proto in place
	$(LINTER) fmt ./...
	$(BUF) format -w

.PHONY: fmt-check
fmt-check: $(LINTER) ## Want all Go files formatted, with imports in three groups
	@files=$$($(LINTER) fmt --diff ./...) && [ -z "$$files" ] || { echo "$$files"; echo "run make fmt"; exit 1; }

# Tests have three tiers. make test is what everybody runs: every package, in one static configuration, against the real
# binary. make race repeats with the race detector the packages that start goroutines. make verify is everything else, a
# stage at a time: .ci/stages says which files each stage depends on, and .ci/run runs those whose files changed.

# Packages whose tests need another program than Go: Node, Chromium, network namespaces.
OTHERS := ./tests/cluster ./tests/console ./tests/guides ./tests/mcp ./tests/node ./examples/typescript-runner

# tools/test.sh runs go test; the first argument names the run. What tests need of the environment is set here.
RUN_TESTS      := TOOLS=$(TOOLS) GO=$(GO) $(TESTED) tools/test.sh
RUN_TESTS_RACE := TOOLS=$(TOOLS) GO=$(GO) tools/test.sh

.PHONY: test
test: $(TOOLS)/gotestsum ## Test every package; COUNT=1 repeats no cached result (ten minutes on two cores, and as much to compile all)
	$(RUN_TESTS) test ./tests $$($(GO) list ./... | grep -vxF -e quartet/tests -e "$$($(GO) list $(OTHERS))") -- -p 4

# The packages that start a goroutine, and planes, whose parts do.
.PHONY: race
race: $(TOOLS)/gotestsum ## Test the packages that start goroutines with the race detector, at the size of go test -short
	$(RUN_TESTS_RACE) race $$(git grep -lE '^[[:space:]]*go (func|[a-zA-Z_.]+)\(|\.Go\(' -- pkg services ':!*_test.go' ':!services/cli' \
	  | xargs -n1 dirname | sed 's|^|./|' | sort -u) ./services/agent ./services/work -- -race -short -trimpath -tags=$(TAGS),nomodels -p 2

.PHONY: race-all
race-all: $(TOOLS)/gotestsum
	$(RUN_TESTS_RACE) race-all $$($(GO) list ./... | grep -vxF "$$($(GO) list $(OTHERS))") -- -race -trimpath -tags=$(TAGS),nomodels -p 2
	$(RUN_TESTS_RACE) race-clock ./pkg/clock -- -race -trimpath -tags=$(TAGS),nomodels,clockstep

# What repeats something, such as a kill of the server or a seed of the simulation, repeats it more often.
.PHONY: thorough
thorough: $(TOOLS)/gotestsum
	QUARTET_THOROUGH=1 $(RUN_TESTS) thorough ./tests ./pkg/journal/... -- -p 2

.PHONY: seeds
seeds: $(TOOLS)/gotestsum
	QUARTET_THOROUGH=1 $(RUN_TESTS) seeds ./tests/sim --

.PHONY: models
models: $(TOOLS)/gotestsum
	TOOLS=$(TOOLS) GO=$(GO) $(STATIC) tools/test.sh models ./services/runner/... ./cmd/... --

.PHONY: clients
clients: $(TOOLS)/gotestsum tests/node/node_modules tests/mcp/node_modules examples/typescript-runner/node_modules
	$(RUN_TESTS) clients ./tests/mcp ./tests/node ./examples/typescript-runner --

.PHONY: guides
guides: $(TOOLS)/gotestsum
	@command -v ip >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2; }
	TOOLS=$(TOOLS) GO=$(GO) $(STATIC) tools/test.sh guides ./tests/guides --

.PHONY: browser
browser: $(TOOLS)/gotestsum $(CONSOLE)/node_modules
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	$(RUN_TESTS) browser ./tests/console --

.PHONY: cluster
cluster: $(TOOLS)/gotestsum
	@command -v ip >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2; }
	$(RUN_TESTS) cluster ./tests/cluster --

.PHONY: verify
verify: ## Everything that make test leaves out, a stage at a time; what passed is not run again (two hours)
	MAKE=$(MAKE) tools/verify.sh

# Three NATS servers and two instances, in network namespaces. Faults last for seconds, so they come after what is above.
# The long form has each service as a process of its own, and clocks that are moved.
.PHONY: chaos
chaos: ## Put faults into a cluster for CHAOS (10m) and compare what callers were answered; ARGS='-seed N'
	$(STATIC) $(GO) test -count=1 -v -timeout 24h ./tests/cluster -run TestX1 -args -chaos=$(or $(CHAOS),10m) $(ARGS)

.PHONY: up
up: ## Run docker-compose.yml from images built here, with TLS and a first admin's key; IMAGES=static without base images
	deploy/up.sh

.PHONY: down
down: ## Stop what make up runs; its volumes stay
	docker compose --profile workers down || docker-compose --profile workers down

.PHONY: compose-test
compose-test: ## Run the app tests against docker-compose.yml on this machine; needs root for apt and dockerd
	deploy/compose-test.sh

.PHONY: continuity
continuity: ## Run the scenarios of an agent's life with every kill (4 minutes); ARGS for go test, such as -v
	$(STATIC) $(GO) test -count=1 -timeout 30m ./tests/continuity $(ARGS) -args -kills=-1

STEPS ?= 1000000

.PHONY: sim
sim: ## Simulate the services with faults by seed for STEPS steps (1 000 000); ARGS='-seed N' begins at another seed
	$(STATIC) $(GO) test -count=1 -timeout 0 -v ./tests/sim -run 'TestSim$$' -args -total $(STEPS) $(ARGS)

.PHONY: mutants
mutants: ## Plant each known mutant and say which seed of the simulation finds it (an hour); MUTANTS is a regexp of names
	$(STATIC) $(GO) test -count=1 -timeout 0 -v ./tests/sim -run 'TestMutants$$' -args -mutants '$(or $(MUTANTS),.*)' $(ARGS)

# Clients that are not Go take part in the tests; they need Node and their packages.
$(BUF): tools/buf/node_modules ;

%/node_modules: %/package-lock.json
	@command -v npm >/dev/null || { apt-get update -qq && apt-get install -y -qq nodejs npm; }
	cd $* && npm ci --no-audit --no-fund --ignore-scripts
	@touch $@

.PHONY: fuzz
fuzz: ## Fuzz every target for FUZZTIME (20s each)
	@set -e; for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' cmd pkg services 2>/dev/null | xargs -r -n1 dirname | sort -u); do \
	  for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -d' ' -f2); do \
	    echo "== $$dir $$target"; \
	    $(TESTED) $(GO) test ./$$dir -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME); \
	  done; \
	done

# A dozen packages that need few others, so that what the demo takes does not grow with the repository.
PACKAGES ?= ./pkg/clock ./pkg/conf ./pkg/id ./pkg/journal/framelog ./pkg/jsontext ./pkg/packed ./pkg/page ./pkg/retry ./pkg/utf8cut ./pkg/watch

.PHONY: demo
demo: ## Run the release-keeper example with a dozen packages; PACKAGES=./pkg/... checks others, ARGS=--exit ends by itself
	@mkdir -p bin/demo
	@echo "building the server and the release keeper; with an empty build cache that takes two to three minutes"
	$(QUICK) $(GO) run -exec cp ./cmd/quartet bin/demo/quartet
	$(QUICK) $(GO) run -exec cp ./examples/release-keeper bin/demo/release-keeper
	CGO_ENABLED=0 GOFLAGS="$(QUICK_FLAGS)" tools/in-memory.sh bin/demo/release-keeper --quartet bin/demo/quartet --packages "$(PACKAGES)" $(ARGS)

.PHONY: vet
vet: ## Vet everything, and what only some builds have; as the demo builds it
	$(QUICK) $(GO) vet ./...
	cd bench && $(QUICK) $(GO) vet ./...
	$(STATIC) $(GO) vet ./services/runner
	$(STATIC) $(GO) vet -tags '$(TAGS),deployed' ./tests

# The demo builds to be done soon, not to be fast: nothing is optimised, nobody
# debugs it, the model SDKs, which only quartet run needs and which take as long to
# compile as everything else, stay away, and the compiler does not collect its
# garbage below a GiB. That is a third of the work. The commands that the agent runs
# have the same flags, so that nothing is compiled twice; go run keeps what it
# linked for the tests that need the same binary, as go build does not.
QUICK_FLAGS := -trimpath '-gcflags=all=-N -l' -ldflags=-w -tags=grpcnotrace,nomodels
QUICK       := CGO_ENABLED=0 GOGC=off GOMEMLIMIT=1GiB GOFLAGS="$(QUICK_FLAGS)"

.PHONY: bench
bench: ## Measure the targets side by side on this machine; ARGS such as '--for 5s --write docs/benchmarks.md'
	$(GO) build -C bench -o $(CURDIR)/bin/bench .
	bin/bench $(ARGS)

# bench is a module of its own. It is built as the demo is, so that no package of Quartet is compiled for it alone.
.PHONY: bench-check
bench-check: ## Test bench
	cd bench && $(QUICK) $(GO) test ./...

.PHONY: clean
clean: ## Remove bin/ and caches of tests
	rm -rf bin
	$(GO) clean -testcache

# Tools are pinned in a module of their own, so that the product's go.mod stays small.
$(TOOLS)/gotestsum:
	$(call build-tool,gotest.tools/gotestsum)
$(TOOLS)/protoc-gen-go:
	$(call build-tool,google.golang.org/protobuf/cmd/protoc-gen-go)
$(TOOLS)/protoc-gen-go-grpc:
	$(call build-tool,google.golang.org/grpc/cmd/protoc-gen-go-grpc)
$(TOOLS)/protoc-gen-grpc-gateway:
	$(call build-tool,github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-grpc-gateway)
$(TOOLS)/protoc-gen-openapiv2:
	$(call build-tool,github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-openapiv2)
$(TOOLS)/openapi3:
	$(call build-tool,quartet/tools/openapi3)
$(TOOLS)/console:
	$(call build-tool,quartet/tools/console)
$(TOOLS)/toolfields:
	$(call build-tool,quartet/tools/toolfields)
$(LINTER):
	$(call build-tool,github.com/golangci/golangci-lint/v2/cmd/golangci-lint)

# Built like the demo: compiling the linter optimised takes three minutes longer, and one run of it gains less than one.
define build-tool
	$(QUICK) $(GO) build -C tools -o $@ $(1)
endef
