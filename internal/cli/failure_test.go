package cli

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfigFor returns a kubeconfig whose only cluster is cl, with no credentials.
func kubeconfigFor(t *testing.T, cl *api.Cluster) string {
	t.Helper()
	config := api.NewConfig()
	config.Clusters["it"], config.Contexts["it"] = cl, &api.Context{Cluster: "it"}
	config.CurrentContext = "it"
	file := t.TempDir() + "/kubeconfig"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestAdvice checks that all commands print advice if the server cannot be reached or does not
// authenticate the user.
func TestAdvice(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(nil)
	gone.Close()
	strange := httptest.NewTLSServer(nil)
	t.Cleanup(strange.Close)
	status := func(code int, s map[string]any) string {
		srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { answer(rw, code, s) }))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	for server, want := range map[string]string{
		gone.URL:    "no server answers there",
		strange.URL: "did not sign the server's certificate",
		status(401, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "message": "Unauthorized", "code": 401}): "log in again",
		status(403, failure("Forbidden", `workspaces.tenancy.kcp.io is forbidden: User "system:anonymous" cannot list: access denied`, "workspaces", "")):        "you are not logged in",
	} {
		file := kubeconfigFor(t, &api.Cluster{Server: server + "/clusters/root"})
		for _, line := range []string{"kubectl-ws list", "kubectl-ws tree", "kubectl-ws create x", "kubectl-kcp ws list", "kubectl-create-workspace x"} {
			got := call(t, file, strings.Fields(line)...)
			if lines := strings.Split(got.err, "\n"); got.code != 1 || len(lines) != 3 || !strings.Contains(lines[1], want) {
				t.Errorf("%s at %s: got %+v, want %q", line, server, got, want)
			}
		}
	}
}

// TestAdviceForOthers expects that the advice is about the user of --as.
func TestAdviceForOthers(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		answer(rw, 403, failure("Forbidden", `workspaces.tenancy.kcp.io is forbidden: User "ann" cannot list: access denied`, "workspaces", ""))
	}))
	t.Cleanup(srv.Close)
	file := kubeconfigFor(t, &api.Cluster{Server: srv.URL + "/clusters/root"})
	for line, want := range map[string]string{
		"kubectl-ws list": "kubectl ws explain :root\n",
		"kubectl-ws list --as ann --as-group team --as-group the*others": "kubectl ws explain :root --for ann --for-group team --for-group 'the*others'\n",
	} {
		if got := call(t, file, strings.Fields(line)...); !strings.HasSuffix(got.err, "run: "+want) {
			t.Errorf("%s: got %+v, want %q", line, got, want)
		}
	}
}

// TestInterrupted checks the exit code of an interrupted command.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.birth = []string{"Initializing"}
	ctx, cancel := context.WithCancel(t.Context())
	var out, errOut strings.Builder
	reader := writerFunc(func(text []byte) (int, error) {
		if strings.Contains(string(text), "Waiting") {
			cancel()
		}
		return out.Write(text)
	})
	code := run(ctx, []string{"kubectl-ws", "create", "team", "--kubeconfig", w.kubeconfig()}, genericiooptions.IOStreams{Out: reader, ErrOut: &errOut})
	if code != 130 || errOut.String() != "interrupted\n" {
		t.Errorf("got %d, %q", code, errOut.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }
