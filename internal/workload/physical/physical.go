// Package physical reaches a physical cluster: it probes it, and checks its version and what the
// agent may do there.
package physical

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// oldest is the oldest supported version of a physical cluster: server-side apply and watch
// bookmarks are stable in it, and Kubernetes still knew it not long ago.
const oldest = "1.28"

// A Peer is a physical cluster.
type Peer struct {
	// Config is for clients.
	Config *rest.Config
	// Version and Cluster are from the last answer of the cluster: its version, and the UID of
	// its namespace kube-system, which the credentials may not let the agent read.
	Version, Cluster string

	core corev1.CoreV1Interface
}

// New returns a physical cluster that a configuration reaches.
func New(config *rest.Config) (*Peer, error) {
	core, err := corev1.NewForConfig(config)
	return &Peer{Config: config, core: core}, err
}

// A Problem is an error with the reason of a condition.
type Problem struct {
	Reason string
	Err    error
}

// Error implements error.
func (p *Problem) Error() string { return p.Err.Error() }

// Unwrap returns the error without the reason.
func (p *Problem) Unwrap() error { return p.Err }

// Because returns an error with the reason of a condition.
func Because(reason string, err error) error { return &Problem{reason, err} }

// Probe asks the physical cluster whether it serves.
func (p *Peer) Probe(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// A list of one namespace, which may be served from a cache: it needs the credentials, too. Lists from a
	// cache have no limit.
	_, err := p.core.Namespaces().List(ctx, metav1.ListOptions{FieldSelector: metav1.ObjectNameField + "=" + metav1.NamespaceSystem, ResourceVersion: "0"})
	switch {
	case err == nil:
		return nil
	case apierrors.IsUnauthorized(err):
		return Because(workload.Unauthorized, errors.New("the physical cluster does not accept the credentials in the kubeconfig; they may have expired"))
	case apierrors.IsForbidden(err):
		return Because(workload.Unauthorized, fmt.Errorf("the credentials in the kubeconfig lack permissions in the physical cluster: %w", err))
	}
	return Unanswered("the physical cluster does not answer", plain(err))
}

// Unanswered returns the problem that a request to the physical cluster failed.
func Unanswered(what string, err error) error {
	if kcp.IsBusy(err) {
		return Because(workload.ServerBusy, fmt.Errorf("the server cannot tell whether the physical cluster answers: %w", err))
	}
	return Because(workload.Unreachable, fmt.Errorf("%s: %w", what, err))
}

// plain removes the request from an error of a client.
func plain(err error) error {
	var of interface{ Unwrap() error }
	if errors.As(err, &of) && of.Unwrap() != nil && !errors.Is(err, context.DeadlineExceeded) {
		return of.Unwrap()
	}
	return err
}

// Check returns why the agent cannot work in the physical cluster.
func (p *Peer) Check(ctx context.Context) error {
	// Clients that are needed once are made here: one of all groups would be kept for each target.
	disco, err := discovery.NewDiscoveryClientForConfig(p.Config)
	if err != nil {
		return Because(workload.KubeconfigInvalid, err)
	}
	reviews, err := authorization.NewForConfig(p.Config)
	if err != nil {
		return Because(workload.KubeconfigInvalid, err)
	}
	info, err := disco.ServerVersion()
	if err != nil {
		return Unanswered("the physical cluster does not tell its version", plain(err))
	}
	p.Version = info.GitVersion
	have, err := version.ParseGeneric(info.GitVersion)
	if err != nil || have.LessThan(version.MustParseGeneric(oldest)) {
		return Because(workload.TooOld, fmt.Errorf("the physical cluster has version %s; %s is the oldest that is supported", info.GitVersion, oldest))
	}
	if space, err := p.core.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err == nil {
		p.Cluster = string(space.UID) // else two clusters of one name are not told apart
	}
	var lacks []string
	for _, need := range []authorizationv1.ResourceAttributes{
		{Verb: "create", Resource: "namespaces"}, {Verb: "delete", Resource: "namespaces"},
		{Verb: "list", Group: "apps", Resource: "deployments"}, {Verb: "watch", Group: "apps", Resource: "deployments"},
		{Verb: "create", Group: "apps", Resource: "deployments"}, {Verb: "patch", Group: "apps", Resource: "deployments"}, {Verb: "delete", Group: "apps", Resource: "deployments"},
	} {
		review, err := reviews.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &need}}, metav1.CreateOptions{})
		if err != nil {
			return Unanswered("the physical cluster does not tell what the credentials allow", plain(err))
		}
		if !review.Status.Allowed {
			lacks = append(lacks, need.Verb+" "+need.Resource)
		}
	}
	if len(lacks) > 0 {
		return Because(workload.Unauthorized, fmt.Errorf("the credentials in the kubeconfig may not %s in the physical cluster", strings.Join(lacks, ", ")))
	}
	return nil
}

// Unsure reports whether a probe found out nothing, because the server makes too many requests.
func Unsure(err error) bool {
	p := (*Problem)(nil)
	return errors.As(err, &p) && p.Reason == workload.ServerBusy
}

// Lives reports whether the outcome of a probe shows that the physical cluster is alive, or leaves that
// open: the server may have lost the credentials.
func Lives(err error) bool {
	if err == nil {
		return true
	}
	p := (*Problem)(nil)
	return errors.As(err, &p) && (p.Reason == workload.AgentLost || p.Reason == workload.Unauthorized || p.Reason == workload.TooOld || p.Reason == workload.KubeconfigInvalid)
}
