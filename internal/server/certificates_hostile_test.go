package server_test

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"sync"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// nameIn returns the common name in a certificate or in a request for one.
func nameIn(t *testing.T, text []byte) string {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no PEM: %q", text)
	}
	if block.Type == "CERTIFICATE REQUEST" {
		return must(x509.ParseCertificateRequest(block.Bytes))(t).Subject.CommonName
	}
	return must(x509.ParseCertificate(block.Bytes))(t).Subject.CommonName
}

// is reports whether a request has a condition.
func is(r *certificatesv1.CertificateSigningRequest, of certificatesv1.RequestConditionType) bool {
	for _, c := range r.Status.Conditions {
		if c.Type == of {
			return true
		}
	}
	return false
}

// One tenant makes many requests for certificates, approves and denies some at the same time, and replaces others while
// they are signed. Only what was approved is signed, as it was approved, and the request of another tenant is signed
// meanwhile.
func TestManyCertificateRequests(t *testing.T) {
	t.Parallel()
	const names, rounds = 40, 15
	parent := newTenant(t)
	evil, other := parent.workspace("evil").allow("owner"), newTenant(t).workspace("theirs").allow("owner")
	requests := evil.kube.CertificatesV1().CertificateSigningRequests()
	decide := func(r *certificatesv1.CertificateSigningRequest, how certificatesv1.RequestConditionType) {
		r = r.DeepCopy()
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: how, Status: corev1.ConditionTrue, Reason: "Test"})
		if _, err := requests.UpdateApproval(t.Context(), r.Name, r, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	var mu sync.Mutex
	approved := map[string]bool{} // by UID
	begun, signed := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for i := range names {
		all.Go(func() {
			name := fmt.Sprintf("r%d", i)
			for round := range rounds {
				r := certificateRequest(t, name, certificatesv1.KubeAPIServerClientSignerName, fmt.Sprintf("user-%d-%d", i, round))
				made, err := evil.request(r)
				if err != nil {
					t.Error(err)
					return
				}
				if i == 0 && round == 1 {
					close(begun)
				}
				switch (i + round) % 3 {
				case 0: // it is approved, and replaced by one that is not
					mu.Lock()
					approved[string(made.UID)] = true
					mu.Unlock()
					decide(made, certificatesv1.CertificateApproved)
				case 1: // approval and denial race
					mu.Lock()
					approved[string(made.UID)] = true
					mu.Unlock()
					var both sync.WaitGroup
					for _, how := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied} {
						both.Go(func() { decide(made, how) })
					}
					both.Wait()
				}
				if round < rounds-1 {
					err := requests.Delete(t.Context(), name, metav1.DeleteOptions{})
					for apierrors.IsTimeout(err) { // etcd is slow on a busy machine, and may have deleted the object
						if err = requests.Delete(t.Context(), name, metav1.DeleteOptions{}); apierrors.IsNotFound(err) {
							err = nil
						}
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	go func() {
		defer close(signed)
		<-begun
		if r := other.issued(certificateRequest(t, "web", certificatesv1.KubeAPIServerClientSignerName, "web")); len(r.Status.Certificate) == 0 || nameIn(t, r.Status.Certificate) != "web" {
			t.Errorf("the request of another tenant: %v", r.Status)
		}
	}()
	all.Wait()
	<-signed
	for i := range names {
		if (i+rounds-1)%3 == 0 { // it was approved, and not replaced
			evil.await(certificateRequests, "", fmt.Sprintf("r%d", i), func(o *unstructured.Unstructured) bool {
				if o == nil {
					return false
				}
				_, signed, _ := unstructured.NestedFieldNoCopy(o.Object, "status", "certificate")
				return signed
			})
		}
	}
	list := must(requests.List(t.Context(), metav1.ListOptions{}))(t)
	certificates := 0
	for i := range list.Items {
		r := &list.Items[i]
		if len(r.Status.Certificate) == 0 {
			continue
		}
		certificates++
		if !is(r, certificatesv1.CertificateApproved) || is(r, certificatesv1.CertificateDenied) || !approved[string(r.UID)] {
			t.Errorf("%s is signed, and its conditions are %v", r.Name, r.Status.Conditions)
		}
		if want, got := nameIn(t, r.Spec.Request), nameIn(t, r.Status.Certificate); got != want {
			t.Errorf("%s is for %s, and its certificate for %s", r.Name, want, got)
		}
	}
	if len(list.Items) != names || certificates < names/3 {
		t.Errorf("%d requests, %d signed", len(list.Items), certificates)
	}
}

// An approval holds for the request that the approver has seen: neither for another one of the same name, nor for a
// changed one.
func TestApprovalsOfOtherRequests(t *testing.T) {
	t.Parallel()
	owner := newTenant(t).workspace("mine").allow("owner")
	requests := owner.kube.CertificatesV1().CertificateSigningRequests()
	seen := must(owner.request(certificateRequest(t, "web", certificatesv1.KubeAPIServerClientSignerName, "jane")))(t)
	if err := requests.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	replaced := must(owner.request(certificateRequest(t, "web", certificatesv1.KubeAPIServerClientSignerName, "mallory")))(t)
	for what, version := range map[string]string{"as it was seen": seen.ResourceVersion, "without a version": ""} {
		r := seen.DeepCopy()
		r.ResourceVersion = version
		if _, err := owner.approve(r); !apierrors.IsConflict(err) {
			t.Errorf("a request that was replaced is approved, %s: %v", what, err)
		}
	}
	changed := replaced.DeepCopy()
	changed.Spec = certificateRequest(t, "web", certificatesv1.KubeAPIServerClientSignerName, "eve").Spec
	must(owner.approve(changed))(t)
	owner.await(certificateRequests, "", "web", func(o *unstructured.Unstructured) bool {
		_, signed, _ := unstructured.NestedFieldNoCopy(o.Object, "status", "certificate")
		return signed
	})
	if r := must(requests.Get(t.Context(), "web", metav1.GetOptions{}))(t); nameIn(t, r.Spec.Request) != "mallory" || nameIn(t, r.Status.Certificate) != "mallory" {
		t.Errorf("the approval changed the request: it is for %s, and the certificate for %s", nameIn(t, r.Spec.Request), nameIn(t, r.Status.Certificate))
	}
	update := must(requests.Get(t.Context(), "web", metav1.GetOptions{}))(t)
	update.Spec = changed.Spec
	after, err := requests.Update(t.Context(), update, metav1.UpdateOptions{})
	if err == nil && nameIn(t, after.Spec.Request) != "mallory" || err != nil && !strings.Contains(err.Error(), "spec") {
		t.Errorf("the request of an approved one is changed: %v", err)
	}
}
