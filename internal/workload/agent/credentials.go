package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/workload/syncer"
)

// credentialsSecret is the Secret in the namespace of the agent with its certificate, for all
// replicas.
const credentialsSecret = "kcp-agent-credentials"

// credentials are the certificate of the agent, stored in the physical cluster.
type credentials struct {
	server    *server
	clients   kubernetes.Interface
	namespace string
	physical  string // UID of the physical cluster
}

// load uses the stored certificate, or asks for the first one with the token of the bootstrap.
func (c *credentials) load(ctx context.Context) error {
	secrets := c.clients.CoreV1().Secrets(c.namespace)
	have, err := secrets.Get(ctx, credentialsSecret, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot read the certificate of the agent: %w", err)
	}
	if err == nil && string(have.Data["view"]) == c.server.url.Path {
		pair, err := pairOf(have.Data[corev1.TLSCertKey], have.Data[corev1.TLSPrivateKeyKey])
		if err == nil && time.Now().Before(pair.Leaf.NotAfter) {
			c.server.use(pair)
			return nil
		}
	}
	c.server.certificate.Store(nil)
	if c.server.token == "" {
		return errors.New("the agent has no valid certificate and no token; register the physical cluster again with: kubectl kcp workload sync")
	}
	return c.renew(ctx)
}

func pairOf(certificate, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	if pair.Leaf == nil {
		pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	return &pair, err
}

// due returns when the certificate is to be renewed: after two thirds of its life.
func (c *credentials) due() time.Time {
	pair := c.server.certificate.Load()
	if pair == nil {
		return time.Time{}
	}
	return pair.Leaf.NotAfter.Add(-pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore) / 3)
}

// renew asks for a certificate with a new key, stores it, and uses it.
func (c *credentials) renew(ctx context.Context) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	var got syncer.CertificateResponse
	err = c.server.call(ctx, "POST", "/"+syncer.Certificate, syncer.CertificateRequest{
		Request: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), PhysicalCluster: c.physical}, &got)
	if err != nil {
		return fmt.Errorf("the server gives the agent no certificate: %w", err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	keyText := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
	pair, err := pairOf([]byte(got.Certificate), keyText)
	if err != nil {
		return fmt.Errorf("the certificate of the server cannot be used: %w", err)
	}
	if err := c.store(ctx, map[string][]byte{corev1.TLSCertKey: []byte(got.Certificate), corev1.TLSPrivateKeyKey: keyText, "view": []byte(c.server.url.Path)}); err != nil {
		return fmt.Errorf("cannot store the certificate of the agent: %w", err)
	}
	c.server.use(pair)
	return nil
}

func (c *credentials) store(ctx context.Context, data map[string][]byte) error {
	secrets := c.clients.CoreV1().Secrets(c.namespace)
	have, err := secrets.Get(ctx, credentialsSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: credentialsSecret, Namespace: c.namespace}, Data: data}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	have.Data = data
	_, err = secrets.Update(ctx, have, metav1.UpdateOptions{})
	return err
}
