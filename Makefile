# build check gen bench storm dist. "make check" is all that CI runs.
GENERATED = find apis -name 'zz_generated*' -o -path 'apis/crds/*.yaml' | sort
# Nothing reads the debugging information of what make check builds. To compile without it takes a seventh less processor time.
PLAIN = GOFLAGS="$(strip $(shell go env GOFLAGS) -gcflags=all=-dwarf=false)"
RACE = GORACE=atexit_sleep_ms=0 GOFLAGS="$(strip $(shell go env GOFLAGS) -race -gcflags=all=-dwarf=false)"
# Compilers collect garbage less often: a sixth less processor time, for more memory.
QUICK = GOGC=400
# Servers in tests hold gigabytes with that, and are no faster.
TESTED = GOGC=200 $(RACE)
AS_STOCK = -ldflags '-X k8s.io/component-base/version.gitVersion=v1.36.3'
STOCK = go -C test/tools build $(AS_STOCK)
# Tools that the tests of make check need besides ./cmd of test/tools.
TOOLS = gotest.tools/gotestsum helm.sh/helm/v4/cmd/helm
# Packages whose tests also run each benchmark once.
BENCHED = ./internal/auth/authn ./internal/auth/authz ./internal/request/bounds ./internal/control ./internal/tenancy ./internal/storage/values
# Packages whose tests run programs, hundreds of times. With the race detector, each would take several times as long to start.
SCRIPTED = ./test/physical ./cmd/kcp ./test/conformance ./test/faults ./test/module
.PHONY: build check gen bench storm conformance physical dist clients nightly fmt lint gen-diff programs bench-short storm-short test longest scripted

build:
	go build -o bin/ ./cmd/...
	for name in -ws -workspace -create-workspace _complete-ws _complete-workspace _complete-kcp; do ln -sf kubectl-kcp bin/kubectl$$name; done

# lint and programs compile at the same time, because each has phases that use one processor only.
check: fmt gen-diff
	$(MAKE) --no-print-directory -j 2 lint programs
	$(MAKE) --no-print-directory bench-short storm-short test

gen:
	go generate ./...

bench: build
	$(STOCK) -o $(CURDIR)/bin/ ./cmd/...
	go run ./test/bench
	go test -run '^$$' -bench . -benchmem -timeout 60m ./...

# What one tenant feels while another attacks; see test/storm.
storm: build
	go run ./test/storm

# Requests compared with a stock server's, and Kubernetes' own end-to-end tests; see test/conformance.
conformance: programs
	$(QUICK) $(PLAIN) go -C test/tools test -c -vet=off $(AS_STOCK) -o $(CURDIR)/bin/e2e.test ./e2e
	CONFORMANCE=long go test -count=1 -timeout 180m ./test/conformance

# Workloads on real control planes; see test/physical.
physical: programs
	PHYSICAL=long go test -count=1 -timeout 60m ./test/physical
	PHYSICAL=long go test -count=1 -timeout 60m -run '^$$' -bench . ./test/physical

dist:
	go -C internal/dist run . -root $(CURDIR) -o $(CURDIR)/bin/dist

# Tools of docs/tools.md. Terraform and OpenTofu find their provider in the mirror.
clients: PROVIDER = gavinbunney/kubectl/1.19.0/$(shell go env GOOS)_$(shell go env GOARCH)
clients:
	go -C test/tools build -o $(CURDIR)/bin/clients/ tool
	go -C test/tools/metrics build -o $(CURDIR)/bin/clients/kube-state-metrics k8s.io/kube-state-metrics/v2
	for module in clients flux k9s tofu; do go -C test/tools/$$module build -o $(CURDIR)/bin/clients/ tool || exit; done
	for host in registry.terraform.io registry.opentofu.org; do mkdir -p bin/clients/mirror/$$host/$(PROVIDER) && \
		cp bin/clients/terraform-provider-kubectl bin/clients/mirror/$$host/$(PROVIDER)/ || exit; done
	for name in source-controller kustomize-controller; do dir=$$(go -C test/tools/flux list -m -f '{{.Dir}}' github.com/fluxcd/$$name) && \
		cat $$dir/config/crd/bases/*.yaml > bin/clients/$$name.crds.yaml || exit; done

nightly: bench dist clients storm conformance physical
	$(RACE) go test -p 1 -count=1 -timeout 90m $(SCRIPTED)
	NIGHTLY=1 $(RACE) go test -p 1 -count=1 -timeout 90m ./internal/storage/store ./internal/storage/watchcache ./internal/server ./internal/workload/place ./examples/provider ./test/module ./test/faults ./test/upgrade
	NIGHTLY=1 go -C internal/dist test -count=1 -timeout 60m ./...
	NIGHTLY=1 go test -count=1 -run TestPages/tools ./cmd/kcp

fmt:
	@files=$$(gofmt -l .) && test -z "$$files" || { echo "to format with gofmt -w: $$files"; exit 1; }

lint: bin/lint
	$(QUICK) $(RACE) bin/lint ./...

bin/lint: $(wildcard internal/arch/lint/*)
	$(PLAIN) go -C internal/arch/lint build -o $(CURDIR)/bin/lint .

gen-diff:
	@before=$$($(GENERATED) | xargs sha256sum) && $(PLAIN) $(MAKE) --no-print-directory gen && \
	test "$$before" = "$$($(GENERATED) | xargs sha256sum)" || { echo "generated files were not up to date; make gen has made them so: commit them"; exit 1; }

programs:
	$(QUICK) $(PLAIN) go build -ldflags='-s -w' -o bin/ ./cmd/... ./test/bench ./test/storm
	$(QUICK) $(PLAIN) $(STOCK) -o $(CURDIR)/bin/ ./cmd/... $(TOOLS)

bench-short: programs
	bin/bench -short -subjects kcp -kcp bin/kcp

storm-short: programs
	bin/storm -short -kcp bin/kcp

# gotestsum repeats at the end what failed. make lint has the checks of go vet. Without symbols, linking takes a third less.
TEST = bin/gotestsum --format pkgname --format-hide-empty-pkg -- -vet=off -ldflags='-s -w' -timeout 30m
# The longest one begins first. Many of its tests wait, so more than two run at a time.
FIRST = ./internal/server

# This test of ./test/physical waits most of the time, for longer than all scripted tests beside it take.
LONGEST = TestPhysicalClusters

test: programs
	$(TESTED) go test -vet=off -timeout 30m -bench . -benchtime 1x $(BENCHED) # gotestsum takes benchmarks for failures
	$(TESTED) $(TEST) -p 3 -parallel 6 $(FIRST) $(filter-out $(FIRST) $(BENCHED) $(SCRIPTED),$(shell go list ./... | sed "s|^$$(go list -m)|.|"))
	$(MAKE) --no-print-directory -j 2 longest scripted

longest: programs
	$(QUICK) $(PLAIN) $(TEST) -run '^$(LONGEST)$$' ./test/physical

scripted: programs
	$(QUICK) $(PLAIN) $(TEST) -p 3 -skip '^$(LONGEST)$$' $(SCRIPTED)
