package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/view"
)

// breakingDir is the environment variable with the directory of the process that TestPanics runs.
const breakingDir = "KCP_TEST_BREAKING_DIR"

// broke begins the values of all panics of that process.
const broke = "it broke: "

// breaking are parts of a server that panic.
type breaking struct {
	answered chan struct{} // closed when the client has the answer to the request "late"
}

// ServeHTTP implements [http.Handler]. It is the handler of a subresource.
func (b breaking) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	info, _ := request.RequestInfoFrom(req.Context())
	if info.Name == "late" {
		<-b.answered
	}
	panic(broke + info.Name)
}

// validate is an admission rule.
func (breaking) validate(_ context.Context, a admit.Request) error {
	if a.GetName() == "write" {
		panic(broke + "write")
	}
	return nil
}

// breakingView is a view that panics when it parses a path, before authentication.
type breakingView struct{ view.View }

// Name implements [view.View].
func (breakingView) Name() string { return "breaking" }

// Parse implements [view.View].
func (breakingView) Parse(string) (*view.Request, error) { panic(broke + "view") }

// TestBreaking is the process that TestPanics runs. It makes requests that panic.
func TestBreaking(t *testing.T) {
	dir := os.Getenv(breakingDir)
	if dir == "" {
		t.Skip("run by TestPanics")
	}
	b, kubeconfig := breaking{make(chan struct{})}, filepath.Join(dir, "admin.kubeconfig")
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	maps := schema.GroupResource{Resource: "configmaps"}
	s := must(server.New(t.Context(), server.Config{
		Dir: dir, NoSync: true, Listener: listener, ExternalURL: "https://" + listener.Addr().String(), Kubeconfig: kubeconfig,
		Rules: []admit.Rule{{Name: "breaking", Validate: b.validate}}, Views: []view.View{breakingView{}},
		Subresources: serve.Subresources{{Resource: maps, Name: "short", Handler: b}, {Resource: maps, Name: "long", Handler: b, LongRunning: true}},
	}))(t)
	defer s.Close()
	admin := must(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	client := must(rest.HTTPClientFor(admin))(t)
	defer client.CloseIdleConnections()
	const in = "/clusters/root/api/v1/namespaces/default/configmaps"
	for _, r := range []struct{ method, path, body string }{
		{"GET", in + "/now/short", ""}, {"GET", in + "/watching/long", ""}, {"GET", "/services/breaking/x", ""},
		{"POST", in, `{"metadata":{"name":"write"}}`}, {"GET", in + "/late/short?timeout=2s", ""},
	} {
		req := must(http.NewRequestWithContext(t.Context(), r.method, "https://"+listener.Addr().String()+r.path, strings.NewReader(r.body)))(t)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		late := strings.Contains(r.path, "late")
		if late != (err == nil) || late && resp.StatusCode != http.StatusGatewayTimeout {
			t.Fatalf("%s %s: %v, %v", r.method, r.path, resp, err)
		}
		if late {
			_ = resp.Body.Close()
		}
	}
	close(b.answered)
	_, _ = io.Copy(io.Discard, os.Stdin) // until TestPanics has seen all panics
}

// The log has each panic of a request once, with the stack of its goroutine: in a handler before
// and after the timeout of the request, in a long-running request, in a goroutine that upstream
// starts for a write, and before authentication.
func TestPanics(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestBreaking$", "-test.v")
	cmd.Env = append(os.Environ(), breakingDir+"="+t.TempDir())
	input, errs := must(cmd.StdinPipe())(t), must(cmd.StderrPipe())(t)
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{"now": true, "watching": true, "view": true, "write": true, "late": true}
	var log strings.Builder
	for lines := bufio.NewReader(errs); ; {
		line, err := lines.ReadString('\n')
		log.WriteString(line)
		for what := range missing {
			if strings.Contains(line, broke+what) {
				delete(missing, what)
			}
		}
		if len(missing) == 0 {
			_ = input.Close() // once; later calls have no effect
		}
		if err != nil {
			break
		}
	}
	_ = cmd.Wait() // it fails, because TestMain reports the panics
	if !strings.Contains(out.String(), "--- PASS: TestBreaking") {
		t.Errorf("the process failed:\n%s", out.String())
	}
	entries := regexp.MustCompile(`(?m)^[IWEF]\d{4} `).Split(log.String(), -1)
	for _, what := range []string{"now", "watching", "view", "write", "late"} {
		var found []string
		for _, e := range entries {
			if strings.Contains(e, broke+what) {
				found = append(found, e)
			}
		}
		if len(found) != 1 || !strings.Contains(found[0], "panics_test.go:") || !strings.Contains(found[0], "Observed a panic") {
			t.Errorf("panic %q: want one entry with the stack, got %d:\n%s", what, len(found), strings.Join(found, "\n"))
		}
	}
	if strings.Contains(log.String(), "panic serving") {
		t.Error("net/http has logged a panic, too")
	}
	if t.Failed() {
		fmt.Println(log.String())
	}
}
