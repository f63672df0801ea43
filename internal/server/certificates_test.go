package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/auth/credentials"
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

// issued returns what the server makes of a request, once the owner has approved it.
func (c *tenant) issued(r *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	c.t.Helper()
	made := must(c.request(r))(c.t)
	must(c.approve(made))(c.t)
	c.await(certificateRequests, "", r.Name, func(o *unstructured.Unstructured) bool {
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		_, signed, _ := unstructured.NestedFieldNoCopy(o.Object, "status", "certificate")
		return len(conditions) == 2 || signed
	})
	return must(c.kube.CertificatesV1().CertificateSigningRequests().Get(c.t.Context(), r.Name, metav1.GetOptions{}))(c.t)
}

// failedWith reports whether a request failed for a reason, without a certificate.
func failedWith(r *certificatesv1.CertificateSigningRequest, reason string) bool {
	return len(r.Status.Certificate) == 0 && slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateFailed && c.Reason == reason
	})
}

// withCertificate returns a configuration for clients in the cluster with a certificate.
func (c *tenant) withCertificate(certificate, key []byte) *rest.Config {
	config := c.withToken("")
	config.CertData, config.KeyData = certificate, key
	return config
}

// A certificate of the server authenticates its user in one workspace.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	parent := newTenant(t)
	mine, theirs := parent.workspace("mine"), parent.workspace("theirs")
	owner := mine.allow("owner")
	everybody := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:authenticated"}
	mine.grant("everybody", everybody)
	theirs.grant("everybody", everybody)

	private := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	key := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(private))(t)})
	request := func(name string, subject pkix.Name, uris ...*url.URL) *certificatesv1.CertificateSigningRequest {
		r := certificateRequest(t, name, certificatesv1.KubeAPIServerClientSignerName, "")
		der := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject, URIs: uris}, private))(t)
		r.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		return r
	}
	jane := owner.issued(request("jane", pkix.Name{CommonName: "jane", Organization: []string{"testers"}}))
	if got, err := mine.who(mine.withCertificate(jane.Status.Certificate, key)); got != "jane" {
		t.Errorf("in its workspace, the certificate is for %q, %v", got, err)
	}
	for name, other := range map[string]*tenant{"beside": theirs, "above": parent} {
		if got, err := other.who(other.withCertificate(jane.Status.Certificate, key)); got == "jane" || err == nil && got != "system:anonymous" {
			t.Errorf("in the cluster %s, the certificate is for %q, %v", name, got, err)
		}
	}
	// The server replaces the cluster that a request names in its certificate.
	its := must(theirs.any.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{}))(t).GetCreationTimestamp()
	begun := strconv.FormatInt(its.Unix(), 10)
	forged := owner.issued(request("forged", pkix.Name{CommonName: "jane"}, &url.URL{Scheme: "kcp", Opaque: "cluster:" + string(theirs.name) + ":" + begun}))
	if got, err := theirs.who(theirs.withCertificate(forged.Status.Certificate, key)); got == "jane" {
		t.Errorf("with a forged name, the certificate is for %q, %v", got, err)
	}
	// Users with a certificate of their own making, also one that this server signed, are nobody.
	block, _ := pem.Decode(jane.Status.Certificate)
	made := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "owner"}, NotAfter: time.Now().Add(time.Hour),
		URIs: must(x509.ParseCertificate(block.Bytes))(t).URIs, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der := must(x509.CreateCertificate(rand.Reader, made, must(x509.ParseCertificate(block.Bytes))(t), private.Public(), private))(t)
	chain := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), jane.Status.Certificate...)
	if got, err := mine.who(mine.withCertificate(chain, key)); got == "owner" {
		t.Errorf("a certificate signed by a user is for %q, %v", got, err)
	}
	for name, subject := range map[string]pkix.Name{
		"group": {CommonName: "jane", Organization: []string{"system:kcp:admin"}}, "user": {CommonName: "system:kube-controller-manager"}, "none": {},
	} {
		if r := owner.issued(request(name, subject)); !failedWith(r, "SignerValidationFailure") {
			t.Errorf("%s: %v", name, r.Status)
		}
	}
	wrong := request("usages", pkix.Name{CommonName: "jane"})
	wrong.Spec.Usages = append(wrong.Spec.Usages, certificatesv1.UsageServerAuth)
	if r := owner.issued(wrong); !failedWith(r, "SignerValidationFailure") {
		t.Errorf("usages: %v", r.Status)
	}
}

// The server signs for clients only, and nobody for its masters.
func TestCertificatesOfTheServer(t *testing.T) {
	t.Parallel()
	owner := newTenant(t).workspace("mine").allow("owner")
	if _, err := owner.request(certificateRequest(t, "root", certificatesv1.KubeAPIServerClientSignerName, "me", "system:masters")); !apierrors.IsForbidden(err) {
		t.Errorf("for system:masters: %v", err)
	}
	for name, signer := range map[string]string{"node": certificatesv1.KubeletServingSignerName, "kubelet": certificatesv1.KubeAPIServerClientKubeletSignerName} {
		if r := owner.issued(certificateRequest(t, name, signer, "someone")); !failedWith(r, "SignerNotServed") {
			t.Errorf("%s: %v", name, r.Status)
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

// hugeRequest returns a request for a certificate with an RSA key of some bits, and a signature of that size. It
// is not valid.
func hugeRequest(t *testing.T, bits int) []byte {
	t.Helper()
	n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
	key := must(x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 1<<31 - 1}))(t)
	tbs := must(asn1.Marshal(struct {
		Version      int
		Subject, Key asn1.RawValue
		Attributes   []asn1.RawValue `asn1:"tag:0"`
	}{Subject: asn1.RawValue{FullBytes: must(asn1.Marshal(pkix.Name{CommonName: "x"}.ToRDNSequence()))(t)}, Key: asn1.RawValue{FullBytes: key}}))(t)
	signature := make([]byte, bits/8)
	signature[1] = 1
	der := must(asn1.Marshal(struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: tbs}, pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue}, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}}))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// The time to verify a signature grows with the square of the key. The request that a body has room for would
// take a processor for hours, so it is refused before.
func TestHugeKeysInRequestsForCertificates(t *testing.T) {
	t.Parallel()
	c := newTenant(t).workspace("mine")
	r := certificateRequest(t, "huge", certificatesv1.KubeAPIServerClientSignerName, "mallory")
	r.Spec.Request = hugeRequest(t, 20_000)
	if _, err := c.request(r); err == nil || !strings.Contains(err.Error(), "the RSA key has 20000 bits, and the limit is 8192") {
		t.Errorf("got %v", err)
	}
	r.Spec.Request = hugeRequest(t, 8192)
	if _, err := c.request(r); !apierrors.IsInvalid(err) {
		t.Errorf("a key within the limit, with a wrong signature: %v", err)
	}
}
