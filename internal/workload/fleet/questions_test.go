package fleet_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/syncer"
	"github.com/unforked/kcp/kcptest"
)

// pulling returns a compute workspace of a new server, with a SyncTarget in pull mode.
func pulling(t *testing.T) (computing, syncer.Identity) {
	t.Helper()
	u := &kcptest.Universe{Server: server(300 * time.Millisecond)}
	t.Cleanup(func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	})
	c := compute(t, u)
	of, err := c.targets.Create(t.Context(), &workload.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Spec: workload.SyncTargetSpec{Mode: workload.PullMode}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c, syncer.Identity{Compute: kcp.ClusterName(c.Name), Target: "east", UID: string(of.UID)}
}

// TestQuestionsOfAgents expects that an agent cannot make the server list namespaces again and again.
func TestQuestionsOfAgents(t *testing.T) {
	c, i := pulling(t)
	agent := agentOf(t, c, i)
	url := fmt.Sprintf("%s%s/clusters/%s/apis/workload.kcp.io/v1alpha1/namespaces/default/unused/web-tls/secrets", c.Server.URL(), i.Path(), c.Name)
	answers := map[int]int{}
	for range 200 {
		code, text := ask(t, agent, url)
		if answers[code]++; code == http.StatusTooManyRequests && !strings.Contains(text, "try again later") || answers[code] == 1 && code == http.StatusOK && !strings.Contains(text, `"unused":true`) {
			t.Errorf("%d: %s", code, text)
		}
	}
	delete(answers, http.StatusServiceUnavailable) // of a server that begins to lead meanwhile; agents ask again
	if answers[http.StatusTooManyRequests] == 0 || answers[http.StatusOK] == 0 || len(answers) != 2 {
		t.Errorf("answers by code: %v", answers)
	}
	eventually(t, func() error { // it is not refused for ever
		if code, text := ask(t, agent, url); code != http.StatusOK {
			return fmt.Errorf("%d: %s", code, text)
		}
		return nil
	})
}

// agentOf returns a client with the certificate of an agent.
func agentOf(t *testing.T, c computing, i syncer.Identity) *http.Client {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := c.Server.CertifyAgent(i.Compute, syncer.Name+":"+i.Target+":"+i.UID, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	if err != nil {
		t.Fatal(err)
	}
	through := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}} // only the server verifies
	t.Cleanup(through.CloseIdleConnections)
	return &http.Client{Transport: through}
}

func ask(t *testing.T, agent *http.Client, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := agent.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
