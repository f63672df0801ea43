//go:build unix

package physical

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/syncer"
	"github.com/unforked/kcp/internal/workload/tunnel"
)

// A forged physical cluster is one that its owner wrote: it has the certificate of its SyncTarget, and
// answers whatever a test wants.
type forged struct {
	*world
	name, view string
	token      string // of the manifest
	pair       tls.Certificate

	mu      sync.Mutex
	answers http.HandlerFunc // in the tunnel; guarded by mu
}

// forge registers a forged physical cluster in a compute workspace, and keeps its heartbeat and its tunnel
// until the test ends.
func (w *world) forge(t *testing.T, name, compute string) *forged {
	t.Helper()
	f := &forged{world: w, name: name, answers: http.NotFound}
	f.token = f.manifest(t, compute)
	f.certify(t)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() {
		for ctx.Err() == nil {
			_, _, _ = f.send(ctx, http.MethodPut, "/"+syncer.Heartbeat, f.beat()) // the next one follows
			select {
			case <-ctx.Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	at, err := url.Parse(f.view + "/" + syncer.Tunnel)
	if err != nil {
		t.Fatal(err)
	}
	connected := make(chan struct{})
	running.Go(func() {
		once := sync.OnceFunc(func() { close(connected) })
		for ctx.Err() == nil {
			_ = tunnel.Dialer{URL: at, TLS: f.tls(), Handler: http.HandlerFunc(f.answer)}.Run(ctx, once) // it is opened again
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	<-connected
	eventually(t, "the SyncTarget is ready", func() error {
		o, err := w.in(t, compute).Resource(synctargets()).Get(t.Context(), name, metav1.GetOptions{})
		if text := fmt.Sprint(o); err == nil && !strings.Contains(text, "status:True type:Ready") {
			err = errors.New(text)
		}
		return err
	})
	return f
}

// manifest registers the physical cluster, and returns the token in the manifest of its agent.
func (f *forged) manifest(t *testing.T, compute string) (token string) {
	t.Helper()
	manifest := must(t, "workload", "sync", f.name, "--mode", "Pull", "--image", "kcp:test", "--labels", "region="+f.name, "-o", "json", "-w", ":root:"+compute)
	var list struct {
		Items []struct {
			Kind       string
			Metadata   metav1.ObjectMeta
			Data       map[string]string
			StringData map[string]string
		}
	}
	if err := json.Unmarshal([]byte(manifest[strings.Index(manifest, "{"):]), &list); err != nil {
		t.Fatalf("%v\n%s", err, manifest)
	}
	for _, o := range list.Items {
		if o.Kind != "Secret" {
			continue
		}
		text, err := base64.StdEncoding.DecodeString(o.Data["kubeconfig"])
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(append(text, o.StringData["kubeconfig"]...))
		if err != nil {
			t.Fatal(err)
		}
		f.view = config.Host
		return config.BearerToken
	}
	t.Fatalf("the manifest has no Secret:\n%s", manifest)
	return ""
}

// certify gets a certificate with the token.
func (f *forged) certify(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(syncer.CertificateRequest{Request: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})), PhysicalCluster: "forged-" + f.name})
	if err != nil {
		t.Fatal(err)
	}
	var got syncer.CertificateResponse
	eventually(t, "a certificate", func() error { // the server may write the SyncTarget at the same time
		code, text, err := f.sendToken(t, http.MethodPost, f.view+"/"+syncer.Certificate, string(body))
		if err != nil || code != http.StatusOK {
			return fmt.Errorf("%d %s, %w", code, text, err)
		}
		return json.Unmarshal([]byte(text), &got)
	})
	f.pair = tls.Certificate{PrivateKey: key}
	for block, rest := pem.Decode([]byte(got.Certificate)); block != nil; block, rest = pem.Decode(rest) {
		f.pair.Certificate = append(f.pair.Certificate, block.Bytes)
	}
}

// sendToken sends a request with the token of the manifest.
func (f *forged) sendToken(t *testing.T, method, url, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+f.token)
	return f.do(req)
}

func (f *forged) tls() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &f.pair, nil }}
}

func (f *forged) do(req *http.Request) (int, string, error) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: f.tls(), DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(text), err
}

// send sends a request below the view of the agent.
func (f *forged) send(ctx context.Context, method, path, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, f.view+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	return f.do(req)
}

func (f *forged) beat() string {
	return fmt.Sprintf(`{"physicalCluster":"forged-%s","version":"v1.36.0"}`, f.name)
}

func (f *forged) answer(w http.ResponseWriter, req *http.Request) {
	f.mu.Lock()
	now := f.answers
	f.mu.Unlock()
	now(w, req)
}

// serve makes the physical cluster answer. It serves the namespace of a workspace by itself, and passes other
// requests below the namespace to rest, with their path there.
func (f *forged) serve(t *testing.T, s *tenant, rest func(w http.ResponseWriter, req *http.Request, path string)) {
	t.Helper()
	l := engine.Locator{Cluster: s.logical(t), Namespace: "default", Target: f.keyOf(t, f.name)}
	locator, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	namespace := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": l.Physical(),
		"labels": map[string]any{workload.OwnerLabel: l.Target}, "annotations": map[string]any{workload.LocatorAnnotation: string(locator)}}}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers = func(w http.ResponseWriter, req *http.Request) {
		path, ok := strings.CutPrefix(req.URL.Path, "/api/v1/namespaces/"+l.Physical())
		if !ok {
			path, ok = strings.CutPrefix(req.URL.Path, "/apis/metrics.k8s.io/v1beta1/namespaces/"+l.Physical())
		}
		switch {
		case !ok:
			http.NotFound(w, req)
		case path == "":
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(namespace) // the server has gone if it fails
		default:
			rest(w, req, path)
		}
	}
}

// pod serves a pod, and passes other requests on.
func (f *forged) pod(rest http.HandlerFunc) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, req *http.Request, path string) {
		pod := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-1","namespace":%q,"resourceVersion":"5"},"spec":{"containers":[{"name":"web","image":"x"}]},"status":{"phase":"Running"}}`,
			strings.Split(req.URL.Path, "/")[4])
		w.Header().Set("Content-Type", "application/json")
		switch path {
		case "/pods":
			_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"5"},"items":[`+pod+`]}`)
		case "/pods/web-1":
			_, _ = io.WriteString(w, pod)
		default:
			rest(w, req)
		}
	}
}
