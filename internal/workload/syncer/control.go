package syncer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/request/response"
	"github.com/unforked/kcp/internal/workload/tunnel"
)

const (
	life = 24 * time.Hour
	// mostControl is the maximum of the bytes of a request for a certificate and of a heartbeat.
	mostControl = 16 << 10
)

// A CertificateRequest is what an agent sends for a certificate.
type CertificateRequest struct {
	// Request is a certificate request in PEM. Only its public key counts.
	Request string `json:"request"`
	// PhysicalCluster is the UID of the namespace kube-system of the physical cluster.
	PhysicalCluster string `json:"physicalCluster"`
}

// A CertificateResponse has a certificate in PEM.
type CertificateResponse struct {
	Certificate string `json:"certificate"`
}

// A Beat is the heartbeat of an agent.
type Beat struct {
	// Holder is the replica of the agent that leads.
	Holder string `json:"holder,omitempty"`
	// PhysicalCluster is the UID of the namespace kube-system of the physical cluster.
	PhysicalCluster string `json:"physicalCluster"`
	// Version is that of the physical cluster.
	Version string `json:"version,omitempty"`
	// Stops is true if the agent stops workloads with lease fencing when its lease has run out.
	Stops bool `json:"stops,omitempty"`
	// Reason and Message say why the agent cannot work in the physical cluster.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// A BeatResponse tells the agent what to do.
type BeatResponse struct {
	// Mode of the SyncTarget. The agent works in Pull mode only.
	Mode workload.SyncMode `json:"mode"`
	// LeaseSeconds is the lease of the agent. It begins when the agent sends the heartbeat.
	LeaseSeconds int32 `json:"leaseSeconds,omitempty"`
}

// control plans a request of an agent that is not about objects.
func (c *call) control(req *http.Request) (http.Handler, error) {
	switch c.info.Subresource {
	case Certificate:
		if req.Method != http.MethodPost {
			break
		}
		if err := c.mayBootstrap(req.Context()); err != nil {
			return nil, err
		}
		return c.page(c.certify), nil
	case Heartbeat:
		if req.Method != http.MethodPut {
			break
		}
		return c.page(c.beat), nil
	case Tunnel:
		if req.Method != http.MethodGet {
			break
		}
		return http.HandlerFunc(c.tunnel), nil
	}
	return nil, apierrors.NewMethodNotSupported(workload.GroupVersion.WithResource("synctargets").GroupResource(), c.info.Verb)
}

// mayBootstrap checks that the user is the agent, or may create a certificate for it.
func (c *call) mayBootstrap(ctx context.Context) error {
	if c.is(c.user) {
		return nil
	}
	clients, err := c.clients()
	if err != nil {
		return err
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range c.user.GetExtra() {
		extra[k] = v
	}
	review, err := clients.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: c.user.GetName(), UID: c.user.GetUID(), Groups: c.user.GetGroups(), Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create", Group: workload.GroupVersion.Group, Version: workload.GroupVersion.Version,
			Resource: "synctargets", Subresource: Certificate, Name: c.Target},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if !review.Status.Allowed {
		return c.refuse("create synctargets/" + Certificate + " is not granted")
	}
	return nil
}

func (c *call) own() (*rest.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server.Own(string(c.Compute))
}

func (c *call) clients() (*kubernetes.Clientset, error) {
	cfg, err := c.own()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(client.Cluster(cfg, string(c.Compute)))
}

func decode(req *http.Request, into any) error {
	if err := json.NewDecoder(io.LimitReader(req.Body, mostControl)).Decode(into); err != nil {
		return apierrors.NewBadRequest("the request cannot be decoded: " + err.Error())
	}
	return nil
}

// certify issues a certificate.
func (c *call) certify(w http.ResponseWriter, req *http.Request) error {
	var of CertificateRequest
	if err := decode(req, &of); err != nil {
		return err
	}
	if c.target.DeletionTimestamp != nil && !c.is(c.user) {
		return conflict("the SyncTarget is being deleted")
	}
	if err := c.recognize(req, of.PhysicalCluster); err != nil {
		return err
	}
	c.mu.Lock()
	s := c.server
	c.mu.Unlock()
	text, err := s.CertifyAgent(c.Compute, c.agent(), []byte(of.Request), cmp.Or(c.Life, life))
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	answer(w, http.StatusOK, CertificateResponse{string(text)})
	return nil
}

// recognize checks that an agent is in the physical cluster that was registered. The first agent
// registers it. Another write of the SyncTarget at the same time is no reason to refuse the agent, unless it
// registers another physical cluster.
func (c *call) recognize(req *http.Request, physical string) error {
	if physical == "" || len(physical) > 64 {
		return apierrors.NewBadRequest("physicalCluster must be the UID of the namespace kube-system")
	}
	for {
		switch have := c.target.Status.PhysicalCluster; have {
		case physical:
			return nil
		case "":
		default:
			return conflict("the SyncTarget %q is that of another physical cluster; register this one under another name", c.Target)
		}
		if err := c.register(req.Context(), physical); !apierrors.IsConflict(err) {
			return err
		}
		if err := c.authorize(req.Context(), req); err != nil { // it reads the SyncTarget again
			return err
		}
	}
}

// register writes which physical cluster the SyncTarget is that of. It fails if the SyncTarget has changed since it
// was read.
func (c *call) register(ctx context.Context, physical string) error {
	cfg, err := c.own()
	if err != nil {
		return err
	}
	targets, err := client.New[*workload.SyncTarget, *workload.SyncTargetList](cfg, string(c.Compute), workload.GroupVersion.WithResource("synctargets"))
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": c.target.ResourceVersion},
		"status": map[string]any{"physicalCluster": physical}})
	if err != nil {
		return err
	}
	_, err = targets.Patch(ctx, c.Target, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// beat renews the Lease of the target, on the clock of the server. The server that leads follows it.
func (c *call) beat(w http.ResponseWriter, req *http.Request) error {
	var b Beat
	if err := decode(req, &b); err != nil {
		return err
	}
	if c.target.Spec.Mode == workload.PullMode {
		if err := c.recognize(req, b.PhysicalCluster); err != nil {
			return err
		}
		if err := c.renew(req.Context(), b); err != nil {
			return err
		}
	}
	answer(w, http.StatusOK, BeatResponse{c.target.Spec.Mode, c.leaseSeconds()})
	return nil
}

// leaseSeconds returns the lease of agents in seconds.
func (v *View) leaseSeconds() int32 { return int32(v.Lease / time.Second) }

func (c *call) renew(ctx context.Context, b Beat) error {
	clients, err := c.clients()
	if err != nil {
		return err
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	all := clients.CoordinationV1().Leases(workload.TargetsNamespace)
	l, err := all.Get(ctx, c.Target, metav1.GetOptions{})
	made := apierrors.IsNotFound(err)
	if made {
		l, err = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: c.Target, Namespace: workload.TargetsNamespace}}, nil
	}
	if err != nil {
		return err
	}
	l.Annotations = map[string]string{workload.BeatAnnotation: string(text)}
	l.OwnerReferences = []metav1.OwnerReference{{APIVersion: workload.GroupVersion.String(), Kind: "SyncTarget", Name: c.Target, UID: types.UID(c.UID)}}
	l.Spec.HolderIdentity, l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &b.Holder, &metav1.MicroTime{Time: time.Now()}, nil
	if seconds := c.leaseSeconds(); seconds > 0 {
		l.Spec.LeaseDurationSeconds = &seconds
	}
	if !made {
		_, err = all.Update(ctx, l, metav1.UpdateOptions{})
		return err
	}
	_, err = all.Create(ctx, l, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workload.TargetsNamespace}}
		if _, err = clients.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
			_, err = all.Create(ctx, l, metav1.CreateOptions{})
		}
	}
	return err
}

// tunnel keeps the connection of the agent until it ends, or the agent may not use it any more.
func (c *call) tunnel(w http.ResponseWriter, req *http.Request) {
	valid := func(ctx context.Context) bool {
		err := c.authorize(ctx, req)
		return err == nil && c.target.Spec.Mode == workload.PullMode
	}
	c.announce()
	target := tunnel.Target{Key: c.key, Tenant: string(c.server.Tenant(c.Compute))}
	response.AfterFilters(req.Context(), func() {
		err := c.Tunnels.Accept(w, req, target, tunnel.Check{Every: again, Valid: valid, Stop: c.stopping()})
		switch {
		case errors.Is(err, tunnel.ErrTooMany):
			fail(w, apierrors.NewTooManyRequests(err.Error(), int(again/time.Second)))
		case err != nil:
			fail(w, apierrors.NewBadRequest(err.Error()))
		}
	})
}

// announce makes the other servers ask this one for tunnels, from the first tunnel on.
func (v *View) announce() {
	v.mu.Lock()
	s, known := v.server, v.announced
	v.announced = true
	v.mu.Unlock()
	if !known {
		_ = s.Go(s.Announce) // the server is started: it has the request
	}
}

// TunnelsTo are the tunnels that servers serve each other, in [kcp.Extension.Peers].
const TunnelsTo = "tunnels"

// ServePeer connects another server with the physical cluster of a target. The path is the key of the
// target.
func (v *View) ServePeer(w http.ResponseWriter, req *http.Request) {
	v.mu.Lock()
	running := v.ctx
	v.mu.Unlock()
	if running == nil {
		http.Error(w, "the server starts", http.StatusNotFound) // it has no tunnels
		return
	}
	v.Tunnels.Pass(w, req, strings.TrimPrefix(req.URL.Path, "/"), running.Done())
}

// Reach returns a transport to the physical cluster of a target, through the tunnel of its agent to this
// server or to another one.
func (v *View) Reach(key string) http.RoundTripper {
	return v.Tunnels.Route(key, func(ctx context.Context) (all []tunnel.Server, _ error) {
		v.mu.Lock()
		s := v.server
		v.mu.Unlock()
		if s == nil {
			return nil, errEnded()
		}
		others, err := s.Peers(ctx)
		for _, of := range others {
			all = append(all, tunnel.Server{URL: of.At(TunnelsTo + "/" + key), TLS: of.TLS})
		}
		return all, err
	})
}
