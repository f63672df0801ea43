package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/unforked/kcp/kcptest"
)

//go:embed export.yaml
var export string

var certificates = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "certificates"}

// start runs the program until the test ends.
func start(t *testing.T, cfg *rest.Config, export string) *authority {
	t.Helper()
	a, err := loadAuthority(filepath.Join(t.TempDir(), "authority.pem"))
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := manager(cfg, export, nil, ctrl.Options{
		Metrics:    server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}, // there are several in this process
	})
	if err == nil {
		err = setup(mgr, a)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a
}

// request returns a new key and a certificate request in PEM.
func request(t *testing.T) (*ecdsa.PrivateKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// bind binds the export of the provider in a new logical cluster.
func bind(t testing.TB, provider *kcptest.Cluster) *kcptest.Cluster {
	t.Helper()
	tenant := kcptest.New(t)
	tenant.Apply(fmt.Sprintf("{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: certificates}, spec: {reference: {export: {path: %s, name: certificates}}}}", provider.Name))
	return tenant
}

func ask(c *kcptest.Cluster, name, request string) {
	c.Apply(fmt.Sprintf("{apiVersion: example.com/v1, kind: Certificate, metadata: {name: %s}, spec: {request: %q}}", name, request))
}

// check waits for a certificate, and verifies it as a client of its owner would.
func check(t *testing.T, c *kcptest.Cluster, name, owner string, key *ecdsa.PrivateKey) {
	t.Helper()
	o := c.Wait(certificates, "default", name, func(o *unstructured.Unstructured) bool {
		text, _, _ := unstructured.NestedString(o.Object, "status", "certificate")
		return text != ""
	})
	text, _, _ := unstructured.NestedString(o.Object, "status", "certificate")
	trusted, _, _ := unstructured.NestedString(o.Object, "status", "authority")
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatalf("this is no certificate: %s", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(trusted))
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name + ".default." + owner + ".example.com"}); err != nil {
		t.Error(err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		t.Error("it has another key")
	}
}

// TestTenTenants serves ten tenants with one provider: they bind the export before and after
// it starts.
func TestTenTenants(t *testing.T) {
	t.Parallel()
	serve(t, 10)
}

// TestManyTenants serves 1,000 tenants.
func TestManyTenants(t *testing.T) {
	if os.Getenv("NIGHTLY") == "" {
		t.Skip("NIGHTLY is not set")
	}
	serve(t, 1000)
}

func serve(t *testing.T, count int) {
	t.Helper()
	p := kcptest.New(t)
	p.Apply(export)
	key, pem := request(t)
	var tenants []*kcptest.Cluster
	for i := range count {
		if i == count/2 {
			start(t, p.Config, "certificates")
		}
		tenants = append(tenants, bind(t, p))
		ask(tenants[i], "web", pem)
	}
	for _, c := range tenants {
		check(t, c, "web", c.Name, key)
	}
}

// TestInvalidRequest shows that a request is refused in the status, and issued when it is
// repaired.
func TestInvalidRequest(t *testing.T) {
	t.Parallel()
	p := kcptest.New(t)
	p.Apply(export)
	c := bind(t, p)
	start(t, p.Config, "certificates")
	ask(c, "web", "hello")
	c.Wait(certificates, "default", "web", func(o *unstructured.Unstructured) bool {
		all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		return len(all) == 1 && all[0].(map[string]any)["reason"] == "InvalidRequest"
	})
	key, pem := request(t)
	ask(c, "web", pem)
	check(t, c, "web", c.Name, key)
}

// TestOrdinaryCluster runs the same controller against a cluster that has the kind as a
// CustomResourceDefinition.
func TestOrdinaryCluster(t *testing.T) {
	t.Parallel()
	c := kcptest.New(t)
	c.Apply(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: certificates.example.com}
spec:
  group: example.com
  names: {plural: certificates, kind: Certificate}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, properties: {
      spec: {type: object, properties: {request: {type: string}, days: {type: integer, default: 30}}},
      status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}`)
	key, pem := request(t)
	ask(c, "web", pem)
	start(t, c.Config, "")
	check(t, c, "web", "local", key)
}

// TestRenewal shows when a certificate is issued again.
func TestRenewal(t *testing.T) {
	t.Parallel()
	a, err := loadAuthority(filepath.Join(t.TempDir(), "authority.pem"))
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{authority: a}
	_, pem := request(t)
	c := &Certificate{Spec: CertificateSpec{Request: pem, Days: 30}}
	now := time.Now()
	decide := func(name string, at time.Time) string {
		t.Helper()
		if _, err := i.decide(c, name, at); err != nil {
			t.Fatal(err)
		}
		return c.Status.Certificate
	}
	first := decide("a.example.com", now)
	if again, err := i.decide(c, "a.example.com", now); err != nil || again < 19*24*time.Hour || again > 20*24*time.Hour {
		t.Errorf("it looks again after %v, %v", again, err)
	}
	if decide("a.example.com", now.AddDate(0, 0, 19)) != first {
		t.Error("it is renewed before two thirds of its time")
	}
	if decide("a.example.com", now.AddDate(0, 0, 21)) == first {
		t.Error("it is not renewed after two thirds of its time")
	}
	second := c.Status.Certificate
	if decide("b.example.com", now) == second {
		t.Error("the certificate is for another name")
	}
}
