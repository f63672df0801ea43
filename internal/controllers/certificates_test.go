package controllers

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcertificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/rest"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// The loop signs a request only if that request itself is approved. The table may still have an approved request of
// the same name that was deleted before.
func TestOnlyApprovedRequestsAreSigned(t *testing.T) {
	type conditions = []certificatesv1.CertificateSigningRequestCondition
	approved, denied, failed := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved}, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateDenied}, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateFailed}
	for what, c := range map[string]struct {
		signer     string
		conditions conditions
		signed     bool
	}{
		"approved":                    {certificatesv1.KubeAPIServerClientSignerName, conditions{approved}, true},
		"not approved":                {certificatesv1.KubeAPIServerClientSignerName, nil, false},
		"denied":                      {certificatesv1.KubeAPIServerClientSignerName, conditions{denied}, false},
		"failed":                      {certificatesv1.KubeAPIServerClientSignerName, conditions{approved, failed}, false},
		"approved for another signer": {"example.com/signer", conditions{approved}, false},
	} {
		t.Run(what, func(t *testing.T) {
			r := &certificatesv1.CertificateSigningRequest{TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}, ObjectMeta: metav1.ObjectMeta{Name: "web"}}
			r.Spec.SignerName, r.Spec.Usages, r.Status.Conditions = c.signer, []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}, c.conditions
			written := false
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				written = written || req.Method != http.MethodGet
				w.Header().Set("Content-Type", "application/json")
				if err := json.NewEncoder(w).Encode(r); err != nil {
					t.Error(err)
				}
			}))
			defer server.Close()
			client, err := typedcertificatesv1.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			issued := false
			d := Deps{Issue: func(cluster.Name, []byte, time.Duration) ([]byte, error) {
				issued = true
				return []byte("certificate"), nil
			}}
			if err := d.sign(t.Context(), client.CertificateSigningRequests(), control.Key{Cluster: "c", Name: "web"}); err != nil {
				t.Error(err)
			}
			if issued != c.signed || written != c.signed {
				t.Errorf("issued: %v, written: %v", issued, written)
			}
		})
	}
}

// Requests for certificates are kept as long as in Kubernetes.
func TestWhenCertificateRequestsEnd(t *testing.T) {
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	condition := func(kind certificatesapi.RequestConditionType, after time.Duration) certificatesapi.CertificateSigningRequestCondition {
		return certificatesapi.CertificateSigningRequestCondition{Type: kind, LastUpdateTime: metav1.NewTime(made.Add(after))}
	}
	ours := "kubernetes.io/kube-apiserver-client"
	for what, tc := range map[string]struct {
		signer     string
		issued     bool
		conditions []certificatesapi.CertificateSigningRequestCondition
		keep       time.Duration
		ready      bool
	}{
		"open":                    {keep: 24 * time.Hour},
		"denied":                  {conditions: []certificatesapi.CertificateSigningRequestCondition{condition(certificatesapi.CertificateDenied, time.Hour)}, keep: 2 * time.Hour},
		"failed":                  {conditions: []certificatesapi.CertificateSigningRequestCondition{condition(certificatesapi.CertificateApproved, 0), condition(certificatesapi.CertificateFailed, time.Hour)}, signer: ours, keep: 2 * time.Hour},
		"approved":                {conditions: []certificatesapi.CertificateSigningRequestCondition{condition(certificatesapi.CertificateApproved, time.Hour)}, keep: 25 * time.Hour},
		"approved, for us":        {conditions: []certificatesapi.CertificateSigningRequestCondition{condition(certificatesapi.CertificateApproved, 0)}, signer: ours, keep: 24 * time.Hour, ready: true},
		"issued":                  {conditions: []certificatesapi.CertificateSigningRequestCondition{condition(certificatesapi.CertificateApproved, time.Hour)}, issued: true, keep: 2 * time.Hour},
		"approved without a time": {conditions: []certificatesapi.CertificateSigningRequestCondition{{Type: certificatesapi.CertificateApproved}}, keep: -1},
	} {
		r := &certificatesapi.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made)}}
		r.Spec.SignerName, r.Status.Conditions = tc.signer, tc.conditions
		if tc.issued {
			r.Status.Certificate = []byte("damaged")
		}
		got, err := certificateRequestOf(r)
		if err != nil || got.ready != tc.ready {
			t.Errorf("%s: ready is %t, %v", what, got.ready, err)
		}
		if tc.keep < 0 && !got.until.IsZero() || tc.keep > 0 && !got.until.Equal(made.Add(tc.keep)) {
			t.Errorf("%s: deleted at %s", what, got.until)
		}
	}
}
