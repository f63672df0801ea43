package fleet_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/syncer"
	"github.com/unforked/kcp/kcptest"
)

// TestFirstCertificates expects that the first requests for a certificate succeed though the SyncTarget changes at the
// same time: each of them registers the physical cluster. Another physical cluster is refused.
func TestFirstCertificates(t *testing.T) {
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
	admin, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.CloseIdleConnections()
	i := syncer.Identity{Compute: kcp.ClusterName(c.Name), Target: "east", UID: string(of.UID)}
	certify := func(physical string) (int, string) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		body, err := json.Marshal(syncer.CertificateRequest{Request: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), PhysicalCluster: physical})
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		resp, err := admin.Post(c.Server.URL()+i.Path()+"/"+syncer.Certificate, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(text)
	}
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			if code, text := certify("one"); code != http.StatusOK {
				t.Errorf("the first request for a certificate: %d %s", code, text)
			}
		})
	}
	all.Wait()
	if code, text := certify("other"); code != http.StatusConflict {
		t.Errorf("a request from another physical cluster: %d %s", code, text)
	}
}
