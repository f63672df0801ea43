package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// groups matches the names of all tests of the four groups.
const groups = `\[sig-(api-machinery|auth|instrumentation|cli)\]`

// TestUpstream runs Kubernetes' own end-to-end tests of the groups api-machinery, auth,
// instrumentation and cli: all of them, in two workspaces of one server and at a stock server at
// the same time. A test that passes at the stock server passes in a
// workspace, unless it needs a kind that workspaces do not have; see [suites.judge]. With
// CONFORMANCE=reports, the reports of the last long run are judged again.
func TestUpstream(t *testing.T) {
	if wanted("reports") {
		s := suites{want: &suite{name: "stock"}, got: []*suite{{name: "workspace-1"}, {name: "workspace-2"}}}
		s.read(t)
		return
	}
	if !wanted("long") {
		t.Skip("Kubernetes' own tests are built and run by make conformance")
	}
	start := startKCP(t)
	workspace := func(t *testing.T, name string) *side {
		s := start(t, name)
		// As in a cluster of Kubernetes, all users may enter; tests impersonate some.
		s.must(t, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"all"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"system:kcp:workspace:access"},
			"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"system:authenticated"}]}`)
		return s
	}
	s := suites{
		want: newSuite(t, withoutPods(t, startStock(t)), "stock", 20), // most of these wait for pods
		got:  []*suite{newSuite(t, workspace(t, "one"), "workspace-1", 6), newSuite(t, workspace(t, "two"), "workspace-2", 6)},
	}
	s.run(t)
}

// kubectl proxy forwards to a workspace, with the flag for servers whose URL has a path.
func TestProxy(t *testing.T) {
	s := startKCP(t)(t, "proxied")
	proxy := exec.CommandContext(t.Context(), program(t, "kubectl"), "--kubeconfig="+s.kubeconfig(t), "proxy", "--port=0", "--append-server-path")
	out, err := proxy.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = proxy.Process.Kill() // it ends no other way
		_ = proxy.Wait()
	})
	var at string
	if _, err := fmt.Fscanf(out, "Starting to serve on %s", &at); err != nil {
		t.Fatal(err)
	}
	answer, err := http.Get("http://" + at + "/api")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }() // it was only read
	body, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(body), `"v1"`) {
		t.Errorf("got %s, %v", body, err)
	}
}

// suites are runs of the same tests.
type suites struct {
	want *suite // at the stock server
	got  []*suite
}

func (s suites) run(t *testing.T) {
	t.Helper()
	all := append([]*suite{s.want}, s.got...)
	var wait sync.WaitGroup
	for _, one := range all {
		wait.Go(func() { one.err = one.run() })
	}
	wait.Wait()
	for _, one := range all {
		if one.err != nil {
			t.Logf("%s: %v", one.name, one.err) // also if a test failed
		}
	}
	s.read(t)
}

// read judges the reports.
func (s suites) read(t *testing.T) {
	t.Helper()
	for _, one := range append([]*suite{s.want}, s.got...) {
		if err := one.read(); err != nil {
			t.Fatalf("%s: %v", one.name, err)
		}
	}
	for _, one := range s.missing() {
		t.Error(one)
	}
	for _, one := range s.got {
		s.judge(t, one)
	}
}

// missing returns what some servers ran and others did not: a run that ends early has no result for its last tests.
func (s suites) missing() (all []string) {
	ran := map[string]bool{}
	suites := append([]*suite{s.want}, s.got...)
	for _, one := range suites {
		for name := range one.results {
			ran[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ran)) {
		for _, one := range suites {
			if one.results[name] == nil {
				all = append(all, fmt.Sprintf("%s: %s did not run", one.name, name))
			}
		}
	}
	return all
}

// suite is a run of tests at one server.
type suite struct {
	name      string
	processes int
	programs  [3]string // ginkgo, the tests, kubectl
	file      string    // kubeconfig
	results   map[string]*spec
	err       error
}

// newSuite returns a run whose report and log are kept in bin/upstream.
func newSuite(t *testing.T, s *side, name string, processes int) *suite {
	t.Helper()
	one := &suite{name: name, processes: processes, file: s.kubeconfig(t)}
	if err := errors.Join(os.RemoveAll(one.dir()), os.MkdirAll(one.dir(), 0o755)); err != nil {
		t.Fatal(err)
	}
	one.programs = [3]string{program(t, "ginkgo"), program(t, "e2e.test"), program(t, "kubectl")}
	return one
}

func (s *suite) dir() string { return filepath.Join("../../bin/upstream", s.name) }

func (s *suite) run() error {
	dir, err := filepath.Abs(s.dir())
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the report counts
	cmd := exec.Command(s.programs[0], fmt.Sprintf("--procs=%d", s.processes), "--timeout=3h", "--focus="+groups,
		"--silence-skips", "--no-color", "--json-report=report.json", "--output-dir="+dir, s.programs[1], "--",
		"--kubeconfig="+s.file, "--kubectl-path="+s.programs[2], "--num-nodes=1", "--allowed-not-ready-nodes=-1",
		"--dump-logs-on-failure=false", "--e2e-output-dir="+dir)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(cmd.Environ(), "HOME="+dir) // kubectl keeps a cache there
	return cmd.Run()
}

// read reads the report.
func (s *suite) read() error {
	raw, err := os.ReadFile(filepath.Join(s.dir(), "report.json"))
	if err != nil {
		return err
	}
	var reports []struct{ SpecReports []*spec }
	if err := json.Unmarshal(raw, &reports); err != nil {
		return err
	}
	s.results = map[string]*spec{}
	for _, r := range reports {
		for _, one := range r.SpecReports {
			if one.LeafNodeType == "It" {
				if one.NumAttempts > 0 || one.State == "pending" { // the others do not match
					s.results[one.name()] = one
				}
			} else if one.State != "passed" {
				return fmt.Errorf("%s: %s", one.LeafNodeType, one.Failure.Message)
			}
		}
	}
	if s.count("passed") == 0 {
		return fmt.Errorf("no test passed; see %s", s.dir())
	}
	return nil
}

func (s *suite) count(state string) (n int) {
	for _, one := range s.results {
		if one.State == state {
			n++
		}
	}
	return n
}

// spec is the result of one test. The fields are those of Ginkgo's report.
type spec struct {
	ContainerHierarchyTexts    []string
	LeafNodeType, LeafNodeText string
	State                      string
	NumAttempts                int
	CapturedGinkgoWriterOutput string
	Failure                    struct{ Message string }
}

func (s *spec) name() string {
	return strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
}

// withoutPods makes a server refuse pods, so that a test that passes needs none.
func withoutPods(t *testing.T, s *side) *side {
	t.Helper()
	const policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
	s.must(t, policies+"ies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"no-pods"},
		"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},
		"validations":[{"expression":"false","message":"`+noPods+`"}]}}`)
	s.must(t, policies+"ybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding",
		"metadata":{"name":"no-pods"},"spec":{"policyName":"no-pods","validationActions":["Deny"]}}`)
	return s
}

const noPods = "this server runs no pods"
