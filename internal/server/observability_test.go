package server_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

const observability = "../../observability"

// expressions returns the PromQL expressions of the dashboard and of the alert rules.
func expressions(t *testing.T) []string {
	t.Helper()
	var board struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(must(os.ReadFile(filepath.Join(observability, "dashboard.json")))(t), &board); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range board.Panels {
		for _, x := range p.Targets {
			all = append(all, x.Expr)
		}
	}
	panels := len(all)
	rules := string(must(os.ReadFile(filepath.Join(observability, "alerts.yaml")))(t))
	all = append(all, regexp.MustCompile(`(?m)expr: (?:\|-\n(?:\s{6}.*\n)+|.*)`).FindAllString(rules, -1)...)
	if panels < 15 || len(all) < panels+12 {
		t.Fatalf("%d expressions, of which %d of the dashboard", len(all), panels)
	}
	return all
}

// The dashboard and the alert rules use only metrics that the server has.
func TestDashboardAndAlerts(t *testing.T) {
	newTenant(t) // starts the server, which registers the metrics
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		legacyregistry.Registerer().(*prometheus.Registry).Describe(descriptions)
	}()
	known := []string{"up"} // of Prometheus
	name := regexp.MustCompile(`fqName: "([^"]*)"`)
	for d := range descriptions {
		known = append(known, name.FindStringSubmatch(d.String())[1])
	}
	for _, f := range must(legacyregistry.DefaultGatherer.Gather())(t) { // some have no description before
		known = append(known, f.GetName())
	}
	used := regexp.MustCompile(`([a-z][a-z0-9_]+)\{`)
	for _, x := range expressions(t) {
		names := used.FindAllStringSubmatch(x, -1)
		if len(names) == 0 {
			t.Errorf("%q uses no metric", x)
		}
		for _, n := range names {
			if !slices.Contains(known, strings.TrimSuffix(n[1], "_bucket")) && !slices.Contains(known, n[1]) {
				t.Errorf("the server has no metric %s, which %q uses", n[1], x)
			}
		}
	}
}

// Prometheus' own tool accepts the alert rules, and they fire when they should. The nightly form
// builds it; otherwise the test needs bin/promtool.
func TestAlertsWithPromtool(t *testing.T) {
	tool := must(filepath.Abs("../../bin/promtool"))(t)
	if _, err := os.Stat(tool); err != nil {
		if os.Getenv("NIGHTLY") == "" {
			t.Skip("bin/promtool is not built: go -C test/tools/prometheus build -o $PWD/bin/ tool")
		}
		tool = filepath.Join(t.TempDir(), "promtool")
		build := exec.CommandContext(t.Context(), "go", "build", "-o", tool, "github.com/prometheus/prometheus/cmd/promtool")
		build.Dir, build.Env = "../../test/tools/prometheus", append(os.Environ(), "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		c := exec.CommandContext(t.Context(), tool, args...)
		c.Dir = observability
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
