package controllers

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
)

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
