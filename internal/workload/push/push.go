// Package push reaches physical clusters in push mode: with the kubeconfig that their SyncTarget
// names. It hides what a tenant's kubeconfig may contain, and how responses of a physical
// cluster are limited.
package push

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/answers"
	"github.com/unforked/kcp/internal/workload/physical"
)

// A Workspace is a compute workspace, with the server that serves it.
type Workspace struct {
	Server *kcp.Server
	Name   kcp.ClusterName
}

// Kubeconfig reads the kubeconfig of a SyncTarget. An error that is not the server's own is a
// [physical.Problem].
func (w Workspace) Kubeconfig(ctx context.Context, t *workload.SyncTarget) ([]byte, error) {
	if t == nil || t.Spec.Push == nil {
		return nil, physical.Because(workload.KubeconfigInvalid, errors.New("spec.push.kubeconfigSecretRef is not set; kubectl kcp workload sync sets it"))
	}
	cfg, err := w.Server.Own(string(w.Name))
	if err != nil {
		return nil, err
	}
	secrets, err := client.New[*corev1.Secret, *corev1.SecretList](cfg, string(w.Name), corev1.SchemeGroupVersion.WithResource("secrets"))
	if err != nil {
		return nil, err
	}
	ref := t.Spec.Push.KubeconfigSecretRef
	s, err := secrets.Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, physical.Because(workload.KubeconfigInvalid, err)
	}
	text, ok := s.Data[workload.KubeconfigKey]
	if !ok {
		return nil, physical.Because(workload.KubeconfigInvalid, fmt.Errorf("secret %s/%s has no key %q", ref.Namespace, ref.Name, workload.KubeconfigKey))
	}
	return text, nil
}

// Fingerprint returns a hash of a kubeconfig, or of another text.
func Fingerprint(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// A Peer is a physical cluster that was reached.
type Peer struct {
	*physical.Peer
	Credentials string            // the [Fingerprint] of the kubeconfig
	through     http.RoundTripper // of the engine
}

// Dial reaches the physical cluster of a SyncTarget, and checks its version and what the agent may do
// there. A probe takes within at most. With an error, it may return a peer that was reached.
func (w Workspace) Dial(ctx context.Context, t *workload.SyncTarget, within time.Duration) (*Peer, error) {
	text, err := w.Kubeconfig(ctx, t)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil, physical.Because(workload.KubeconfigInvalid, fmt.Errorf("the kubeconfig cannot be read: %w", err))
	}
	p := &Peer{Credentials: Fingerprint(text)}
	probes, err := configOf(config, func(ca []byte, certificate certificate) (through http.RoundTripper, err error) {
		p.through, through, err = w.Server.EgressOwn(w.Name, ca, certificate)
		return through, err
	})
	if err != nil {
		return nil, physical.Because(workload.KubeconfigInvalid, fmt.Errorf("the kubeconfig cannot be used: %w", err))
	}
	if p.Peer, err = physical.New(probes); err != nil {
		return nil, physical.Because(workload.KubeconfigInvalid, err)
	}
	if err := p.Probe(ctx, within); err != nil {
		return p, err
	}
	if err := p.Check(ctx); err != nil {
		return p, err
	}
	if t.Status.PhysicalCluster != "" && p.Cluster != "" && t.Status.PhysicalCluster != p.Cluster {
		return nil, physical.Because(workload.AnotherCluster, fmt.Errorf("SyncTarget %q is that of another physical cluster; register this one under another name", t.Name))
	}
	return p, nil
}

// Work returns a client configuration for the engine. It has another limit of requests than probes. Answers of the
// physical cluster count for its owner, of.
func (p *Peer) Work(weights *answers.Weights, of kcp.ClusterName) *rest.Config {
	work := rest.CopyConfig(p.Config)
	work.Transport = answers.Transport{Through: p.through, Weights: weights, Of: answers.Owners{Compute: of}, Within: readWithin}
	return work
}
