package physical

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp/internal/workload/tunnel"
	"github.com/unforked/kcp/test/stock"
)

// tunnels sends requests through the tunnel of an agent.
func (s *tenant) tunnels(t *testing.T, east *installed) {
	key := s.keyOf(t, "east")
	client := &http.Client{Transport: s.view.Tunnels.Transport(key)}
	get := func(path string) (int, string, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://physical"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		text, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text), errors.Join(err, resp.Body.Close())
	}
	reached := func() error {
		code, text, err := get("/version")
		if err == nil && (code != http.StatusOK || !strings.Contains(text, "gitVersion")) {
			err = fmt.Errorf("%d %s", code, text)
		}
		return err
	}
	eventually(t, "the version of the physical cluster", reached)
	namespace := s.clusters["east"].only(t, "drift").Namespace
	eventually(t, "the pods of the workspace", func() error {
		all, err := s.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=drift"})
		if err == nil && len(all.Items) == 0 {
			err = errors.New("none are listed")
		}
		for i := range len(all.Items) {
			one, got := s.CoreV1().Pods("default").Get(t.Context(), all.Items[i].Name, metav1.GetOptions{})
			if got != nil || one.UID != all.Items[i].UID || strings.Contains(one.Spec.NodeName, "east") {
				err = fmt.Errorf("pod %q at %q, %v", one.Name, one.Spec.NodeName, got)
			}
		}
		return err
	})
	if code, text, err := get("/api/v1/namespaces/" + namespace + "/pods"); err != nil || code != http.StatusOK || !strings.Contains(text, `"PodList"`) {
		t.Errorf("pods: %d %s, %v", code, text, err)
	}
	for _, path := range []string{"/api/v1/secrets", "/api/v1/namespaces/" + east.namespace + "/secrets", "/api/v1/namespaces/kube-system/pods", "/api/v1/namespaces/" + namespace + "/pods/../../kube-system/pods",
		"/api/v1/namespaces/" + namespace + "/pods/%2e%2e/%2e%2e/kube-system/pods", "/apis/apps/v1/namespaces/" + namespace + "/deployments"} {
		if code, text, err := get(path); err != nil || code != http.StatusForbidden {
			t.Errorf("%s: %d %s, %v", path, code, text, err)
		}
	}
	// A watch ends when the agent does.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://physical/api/v1/namespaces/"+namespace+"/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, resp.Body)
		ended <- err
	}()
	east.stop()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the watch goes on without an agent")
	}
	_ = resp.Body.Close()
	eventually(t, "no tunnel", func() error {
		if _, _, err := get("/version"); !errors.Is(err, tunnel.ErrNone) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	east.start(t)
	eventually(t, "the tunnel is back", reached)
	s.restart(t)
	client.Transport = s.view.Tunnels.Transport(key)
	eventually(t, "the tunnel to a server that was restarted", reached)
}

// restart restarts the server.
func (s *tenant) restart(t *testing.T) {
	t.Helper()
	s.stopServer(t)
	s.startServer(t)
	s.Clientset, s.dynamic = s.typed(t), s.in(t, s.name)
}

// replicates runs a second replica as a process, which takes over.
func (s *tenant) replicates(t *testing.T, east *installed) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "kcp")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", binary, "../../cmd/kcp").CombinedOutput(); err != nil {
		t.Fatalf("build kcp: %v\n%s", err, out)
	}
	of := east.cluster.Config(stock.AdminToken)
	kubeconfig, bootstrap := filepath.Join(dir, "physical.kubeconfig"), filepath.Join(dir, "bootstrap.kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{CurrentContext: "it",
		Contexts:  map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:  map[string]*clientcmdapi.Cluster{"it": {Server: of.Host, CertificateAuthority: of.CAFile}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"it": {Token: of.BearerToken, Impersonate: "system:serviceaccount:" + east.namespace + ":kcp-agent", ImpersonateGroups: []string{"system:authenticated"}}},
	}, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bootstrap, east.bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	process := exec.CommandContext(t.Context(), binary, "agent", "--bootstrap-kubeconfig", bootstrap, "--kubeconfig", kubeconfig, "--namespace", east.namespace, "--replica", "two", "--heartbeat-interval", "300ms")
	var log bytes.Buffer
	process.Stdout, process.Stderr = &log, &log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	before := s.clusters["east"].state(t, "drift")
	east.stop()
	eventually(t, "the other replica leads", func() error {
		l, err := east.cluster.CoordinationV1().Leases(east.namespace).Get(t.Context(), "kcp-agent", metav1.GetOptions{})
		if err == nil && (l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != "two") {
			err = fmt.Errorf("holder %v", l.Spec.HolderIdentity)
		}
		return err
	})
	s.create(t, "two", 2)
	s.rolledOut(t, "two")
	s.remove(t, "two")
	if err := process.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := process.Wait(); err != nil {
		t.Errorf("the agent ends with %v\n%s", err, log.String())
	}
	if after := s.clusters["east"].state(t, "drift"); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	east.start(t)
}

// renews runs an agent whose certificates are always due.
func (s *tenant) renews(t *testing.T, east *installed) {
	s.life = time.Minute
	s.restart(t)
	east.stop()
	if err := east.cluster.CoreV1().Secrets(east.namespace).Delete(t.Context(), "kcp-agent-credentials", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	east.start(t)
	seen := map[string]bool{}
	eventually(t, "three certificates", func() error {
		secret, err := east.cluster.CoreV1().Secrets(east.namespace).Get(t.Context(), "kcp-agent-credentials", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if seen[string(secret.Data[corev1.TLSCertKey])] = true; len(seen) < 3 {
			err = fmt.Errorf("%d certificates", len(seen))
		}
		return err
	})
	s.create(t, "renewed", 2)
	s.rolledOut(t, "renewed")
	s.remove(t, "renewed")
	s.life = 0
	s.restart(t)
}
