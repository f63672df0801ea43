package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp/internal/credentials"
)

var certificateRequests = certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")

// certificateRequest returns a request for a certificate of a user.
func certificateRequest(t *testing.T, name, signer, user string, groups ...string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: groups}}, key))(t)
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}
}

// request creates a request for a certificate.
func (c *tenant) request(r *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	return c.kube.CertificatesV1().CertificateSigningRequests().Create(c.t.Context(), r, metav1.CreateOptions{})
}

// approve approves a request for a certificate.
func (c *tenant) approve(r *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	r = r.DeepCopy()
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", Message: "approved by a test",
	})
	return c.kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(c.t.Context(), r.Name, r, metav1.UpdateOptions{})
}

// Tenants approve and sign requests for signers of their own, if RBAC of the cluster lets them.
func TestCertificatesOfASigner(t *testing.T) {
	t.Parallel()
	c := newTenant(t).workspace("mine")
	owner, other := c.allow("owner"), newTenant(t).workspace("theirs").allow("owner")
	made := must(owner.request(certificateRequest(t, "web", "example.com/web", "web")))(t)
	if made.Spec.Username != "owner" {
		t.Errorf("the request is of %q", made.Spec.Username)
	}
	if _, err := other.approve(made); !apierrors.IsNotFound(err) {
		t.Errorf("approved in another cluster: %v", err)
	}
	clerk := at(t, c.server, c.name, as("clerk"))
	rules := []rbacv1.PolicyRule{{APIGroups: []string{certificateRequests.Group}, Resources: []string{"certificatesigningrequests", "certificatesigningrequests/approval", "certificatesigningrequests/status"}, Verbs: []string{"*"}},
		{NonResourceURLs: []string{"/"}, Verbs: []string{"access"}}}
	must(c.kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "clerk"}, Rules: rules}, metav1.CreateOptions{}))(t)
	must(c.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "clerk"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "clerk"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "clerk"}},
	}, metav1.CreateOptions{}))(t)
	if _, err := clerk.approve(made); !apierrors.IsForbidden(err) {
		t.Errorf("approved without the verb approve on the signer: %v", err)
	}
	approved := must(owner.approve(made))(t)

	certificate, _, err := credentials.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: "web"}, NotAfter: made.CreationTimestamp.AddDate(1, 0, 0)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	approved.Status.Certificate = certificate
	if _, err := clerk.kube.CertificatesV1().CertificateSigningRequests().UpdateStatus(t.Context(), approved, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("signed without the verb sign on the signer: %v", err)
	}
	signed := must(owner.kube.CertificatesV1().CertificateSigningRequests().UpdateStatus(t.Context(), approved, metav1.UpdateOptions{}))(t)
	if string(signed.Status.Certificate) != string(certificate) {
		t.Errorf("the certificate is %q", signed.Status.Certificate)
	}
}

// The server itself signs nothing: a certificate would be valid in all clusters.
func TestCertificatesOfTheServer(t *testing.T) {
	t.Parallel()
	owner := newTenant(t).workspace("mine").allow("owner")
	if _, err := owner.request(certificateRequest(t, "root", certificatesv1.KubeAPIServerClientSignerName, "me", "system:masters")); !apierrors.IsForbidden(err) {
		t.Errorf("for system:masters: %v", err)
	}
	for name, signer := range map[string]string{
		"client": certificatesv1.KubeAPIServerClientSignerName, "node": certificatesv1.KubeletServingSignerName, "kubelet": certificatesv1.KubeAPIServerClientKubeletSignerName,
	} {
		made := must(owner.request(certificateRequest(t, name, signer, "someone")))(t)
		must(owner.approve(made))(t)
		o := owner.await(certificateRequests, "", name, func(o *unstructured.Unstructured) bool {
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			return len(conditions) == 2
		})
		r := must(owner.kube.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{}))(t)
		if last := r.Status.Conditions[1]; last.Type != certificatesv1.CertificateFailed || last.Reason != "SignerNotServed" || len(r.Status.Certificate) > 0 {
			t.Errorf("%s: %v", name, o.Object["status"])
		}
	}
}

// The server deletes old requests, as Kubernetes does.
func TestOldCertificateRequestsAreDeleted(t *testing.T) {
	t.Parallel()
	owner := newTenant(t).workspace("mine").allow("owner")
	r := must(owner.request(certificateRequest(t, "old", "example.com/web", "web")))(t)
	young := must(owner.request(certificateRequest(t, "young", "example.com/web", "web")))(t)
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "Test", LastUpdateTime: metav1.NewTime(r.CreationTimestamp.Add(-2 * 3600e9)),
	}}
	must(owner.kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), r.Name, r, metav1.UpdateOptions{}))(t)
	owner.await(certificateRequests, "", "old", gone)
	owner.await(certificateRequests, "", young.Name, there)
}
