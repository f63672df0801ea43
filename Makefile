# build check gen bench. "make check" is all that CI runs.

TOOLS := bin/lint
# Where generated files are; whoever adds a generator widens this.
GENERATED = find apis -name 'zz_generated*' -o -path 'apis/crds/*.yaml' | sort
# What compiles with the race detector on compiles only once: go test, linters and
# programs of tests take it from here. They would sleep for a second at their end.
RACE = GORACE=atexit_sleep_ms=0 GOFLAGS="$(strip $(shell go env GOFLAGS) -race)"

# The pinned programs of tests, and the packages with benchmarks.
STOCK = go -C test/tools build -ldflags '-X k8s.io/component-base/version.gitVersion=v1.36.3'
BENCHED = $(shell grep -rl --include='*_test.go' --exclude-dir=tools '^func Benchmark' . | xargs -r -n1 dirname | sort -u)
.PHONY: build check gen bench conformance fmt lint gen-diff programs bench-short test

build:
	go build -o bin/ ./cmd/...
	for name in -ws -workspace -create-workspace _complete-ws _complete-workspace _complete-kcp; do ln -sf kubectl-kcp bin/kubectl$$name; done

# The tests come last, so that their lines end the output.
check: fmt gen-diff lint programs bench-short test

gen:
	go generate ./...

# Beside a stock control plane, in one run; then the benchmarks of single packages.
bench: build
	$(STOCK) -o $(CURDIR)/bin/ ./cmd/...
	go run ./test/bench
	go test -run '^$$' -bench . -benchmem -timeout 60m ./...

conformance: programs
	CONFORMANCE=long $(RACE) go test -count=1 -timeout 180m ./test/conformance

fmt:
	@files=$$(gofmt -l .) && test -z "$$files" || { echo "to format with gofmt -w: $$files"; exit 1; }

# go vet runs with the tests, on the same build.
lint: $(TOOLS)
	$(RACE) $(TOOLS)/staticcheck ./...
	$(RACE) $(TOOLS)/errcheck -ignoretests $$(go list ./... | grep -v /test/)
	$(RACE) $(TOOLS)/go-errorlint ./...

$(TOOLS): internal/arch/lint/go.mod internal/arch/lint/go.sum
	go build -modfile=internal/arch/lint/go.mod -o $(TOOLS)/ tool
	@touch $(TOOLS)

gen-diff:
	@before=$$($(GENERATED) | xargs sha256sum) && $(MAKE) --no-print-directory gen && \
	test "$$before" = "$$($(GENERATED) | xargs sha256sum)" || { echo "generated files were not up to date; make gen has made them so: commit them"; exit 1; }

programs:
	$(RACE) go build -o bin/race/ ./cmd/...
	$(RACE) $(STOCK) -o $(CURDIR)/bin/race/ ./cmd/... tool

bench-short:
	$(RACE) go run ./test/bench -short -kcp bin/race/kcp -kube bin/race/kube
	$(if $(BENCHED),$(RACE) go test -short -run '^$$' -bench . -benchtime 1x -timeout 20m $(BENCHED))

test:
	$(RACE) go test -vet=all -timeout 20m ./...
