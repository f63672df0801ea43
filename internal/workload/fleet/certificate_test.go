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

	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/workload/syncer"
)

// TestFirstCertificates expects that the first requests for a certificate succeed though the SyncTarget changes at the
// same time: each of them registers the physical cluster. Another physical cluster is refused.
func TestFirstCertificates(t *testing.T) {
	c, i := pulling(t)
	admin, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.CloseIdleConnections()
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
