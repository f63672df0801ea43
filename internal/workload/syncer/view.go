// Package syncer serves the agents of physical clusters. The view of a target has the objects
// that are assigned to it, their Assignments with its own part only, the objects that they
// refer to, and its own reports. An agent reaches nothing else with its certificate.
//
//	/services/syncer/<compute workspace>/<SyncTarget>/<UID>/clusters/*/...
//	/services/syncer/<compute workspace>/<SyncTarget>/<UID>/{certificate,heartbeat,tunnel}
package syncer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/tunnel"
)

// Paths of an agent beside its view.
const (
	Certificate = workload.CertificateSubresource
	Heartbeat   = "heartbeat"
	Tunnel      = "tunnel"
)

// idle is the time after which a hub without agents ends, and again the time after which open
// watches and tunnels are authorized again.
const (
	idle  = 5 * time.Minute
	again = 15 * time.Second
)

func errEnded() error {
	return apierrors.NewServiceUnavailable("the server starts or stops; try again")
}

// A View is the view of all agents. Start it before it serves.
type View struct {
	// Life is the life of certificates, 24 hours by default. Agents renew them after two thirds
	// of it.
	Life time.Duration
	// Lease is how long the lease of an agent lasts after a heartbeat. Zero means that agents have
	// no lease.
	Lease time.Duration
	// Tunnels has the connections of agents to this server.
	Tunnels tunnel.Pool

	mu     sync.Mutex
	server *kcp.Server
	ctx    context.Context // of the server
	open   Open
	spawn  func(func(context.Context)) error // [kcp.Server.Go]
	hubs   map[kcp.ClusterName]*held         // guarded by mu
	// announced says that the other servers know of this one; guarded by mu.
	announced bool
}

// Open returns what the targets of a compute workspace work from, and a function that ends it.
type Open func(ctx context.Context, compute kcp.ClusterName) (*Source, func(), error)

// A held is a hub with its users.
type held struct {
	*hub                 // nil before ready is closed
	ready  chan struct{} // closed when the hub is open, or cannot be opened
	failed error         // why it cannot
	users  int
	idle   *time.Timer
	done   bool
}

// Start makes the view serve.
func (v *View) Start(s *kcp.Server, open Open) error {
	running := make(chan context.Context, 1)
	if err := s.Go(func(ctx context.Context) { running <- ctx }); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.server, v.open, v.spawn, v.ctx, v.hubs, v.announced = s, open, s.Go, <-running, map[kcp.ClusterName]*held{}, false
	return nil
}

// stopping is closed when the server stops. Watches and tunnels end then.
func (v *View) stopping() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ctx.Done()
}

// Name implements [kcp.View].
func (v *View) Name() string { return Name }

// objectPrefix is the path of the target's own SyncTarget in its compute workspace.
const objectPrefix = "/apis/workload.kcp.io/v1alpha1/synctargets/"

// Parse implements [kcp.View].
func (v *View) Parse(path string) (*kcp.ViewRequest, error) {
	i, rest, ok := parse(path)
	if !ok || !validName(i.Compute) {
		return nil, apierrors.NewNotFound(workload.GroupVersion.WithResource("synctargets").GroupResource(), "")
	}
	r := &kcp.ViewRequest{ID: strings.TrimPrefix(i.Path(), "/services/"+Name+"/"), Home: i.Compute, Cluster: i.Compute}
	if of, ok := strings.CutPrefix(rest, "clusters/"); ok {
		at, path, _ := strings.Cut(of, "/")
		if at != "*" && !validName(kcp.ClusterName(at)) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid logical cluster %q", at))
		}
		r.Cluster, r.Path = kcp.ClusterName(at), "/"+path
		return r, nil
	}
	switch rest {
	case Certificate, Heartbeat, Tunnel:
		r.Path = objectPrefix + i.Target + "/" + rest
		return r, nil
	}
	return nil, apierrors.NewNotFound(workload.GroupVersion.WithResource("synctargets").GroupResource(), i.Target)
}

func validName(c kcp.ClusterName) bool {
	_, err := cluster.ParseName(string(c))
	return err == nil
}

// A call is an authorized request of an agent.
type call struct {
	*View
	Identity
	user   user.Info
	info   *request.RequestInfo
	target *workload.SyncTarget
	key    string          // of the target
	at     kcp.ClusterName // the logical cluster of the request, or "*"
}

// Plan implements [kcp.View].
func (v *View) Plan(req *http.Request, r *kcp.ViewRequest) (*kcp.ViewPlan, error) {
	ctx := req.Context()
	u, known := request.UserFrom(ctx)
	info, ok := request.RequestInfoFrom(ctx)
	i, _, parsed := parse(r.ID + "/")
	if !known || !ok || !parsed {
		return nil, apierrors.NewInternalError(errors.New("a request for the view without a user"))
	}
	c := &call{View: v, Identity: i, user: u, info: info, at: r.Cluster}
	control := strings.HasPrefix(r.Path, objectPrefix) && r.Cluster == i.Compute && info.Subresource != "" && info.Name == i.Target
	if !(control && info.Subresource == Certificate) && !i.is(u) {
		return nil, c.refuse("only the agent of the SyncTarget may use its view")
	}
	if err := c.authorize(ctx, req); err != nil {
		return nil, err
	}
	p := &kcp.ViewPlan{User: u, Reason: "the agent of SyncTarget " + i.Target}
	if control {
		h, err := c.control(req)
		p.Page = h
		return p, err
	}
	if c.target.Spec.Mode != workload.PullMode {
		return nil, conflict("the mode of the SyncTarget is %s: the server works on the physical cluster itself", c.target.Spec.Mode)
	}
	h, err := c.content(req)
	p.Page = h
	return p, err
}

// authorize checks that the SyncTarget exists, and that the certificate has not been revoked.
func (c *call) authorize(ctx context.Context, req *http.Request) error {
	c.mu.Lock()
	s := c.server
	c.mu.Unlock()
	if s == nil {
		return errEnded()
	}
	cfg, err := s.Own(string(c.Compute))
	if err != nil {
		return err
	}
	targets, err := client.New[*workload.SyncTarget, *workload.SyncTargetList](cfg, string(c.Compute), workload.GroupVersion.WithResource("synctargets"))
	if err != nil {
		return err
	}
	t, err := targets.Get(ctx, c.Target, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && string(t.UID) != c.UID {
		return c.refuse("the SyncTarget does not exist any more; register the physical cluster again with: kubectl kcp workload sync")
	}
	if err != nil {
		return err
	}
	if since := t.Spec.CredentialsAfter; since != nil && c.is(c.user) && req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		if issued := req.TLS.PeerCertificates[0].NotBefore.Add(authn.Backdated); issued.Before(since.Truncate(time.Second)) {
			return c.refuse("the certificate is revoked; register the physical cluster again with: kubectl kcp workload sync")
		}
	}
	c.target, c.key = t, engine.TargetKey(string(c.Compute), c.Target, c.UID)
	return nil
}

func (c *call) refuse(why string) error {
	return &kcp.ViewRefusal{Attributes: authorizer.AttributesRecord{User: c.user, Verb: c.info.Verb, APIGroup: c.info.APIGroup, APIVersion: c.info.APIVersion,
		Resource: c.info.Resource, Subresource: c.info.Subresource, Namespace: c.info.Namespace, Name: c.info.Name, ResourceRequest: c.info.IsResourceRequest, Path: c.info.Path}, Reason: why}
}

func conflict(format string, args ...any) error {
	err := apierrors.NewConflict(workload.GroupVersion.WithResource("synctargets").GroupResource(), "", nil)
	err.ErrStatus.Message = fmt.Sprintf(format, args...)
	return err
}

// hub returns the hub of the compute workspace. The caller calls release when it is done. One request begins to open
// a hub, and all wait for it: after a restart, many agents connect at the same time. The next request after an error
// tries again.
func (c *call) hub(ctx context.Context) (*hub, func(), error) {
	c.mu.Lock()
	h := c.hubs[c.Compute]
	if h == nil || h.ended() {
		h = &held{ready: make(chan struct{})}
		open := c.open
		if err := c.spawn(func(ctx context.Context) { c.fill(ctx, h, c.Compute, open) }); err != nil {
			c.mu.Unlock()
			return nil, nil, err
		}
		c.hubs[c.Compute] = h
	}
	h.users++
	c.mu.Unlock()
	select {
	case <-h.ready:
	case <-ctx.Done():
		c.release(h)
		return nil, nil, ctx.Err()
	}
	if h.failed != nil {
		return nil, nil, h.failed
	}
	return h.hub, func() { c.release(h) }, nil
}

// fill opens a hub. It goes on if the request ends that asked for it: others may wait.
func (v *View) fill(ctx context.Context, h *held, compute kcp.ClusterName, open Open) {
	var made *hub
	source, end, err := open(ctx, compute)
	if err == nil {
		if made, err = newHub(ctx, source, end); err != nil {
			end()
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	defer close(h.ready)
	h.hub, h.failed = made, err
	switch {
	case err != nil && v.hubs[compute] == h:
		delete(v.hubs, compute)
	case err == nil && h.users == 0:
		h.idle = time.AfterFunc(idle, func() { v.drop(h) })
	}
}

// ended reports whether the hub cannot be used any more. The lock of the view is held.
func (h *held) ended() bool {
	if h.hub == nil {
		return h.failed != nil
	}
	select {
	case <-h.source.Ended:
		return true
	default:
		return h.done
	}
}

// release ends a hub that has had no users for a while.
func (v *View) release(h *held) {
	v.mu.Lock()
	defer v.mu.Unlock()
	h.users--
	if h.users > 0 || h.hub == nil {
		return
	}
	if h.idle != nil {
		h.idle.Stop()
	}
	h.idle = time.AfterFunc(idle, func() { v.drop(h) })
	if h.ended() {
		go v.drop(h)
	}
}

func (v *View) drop(h *held) {
	v.mu.Lock()
	unused := !h.done && h.users == 0
	if unused {
		h.done = true
		h.idle.Stop()
		for at, have := range v.hubs {
			if have == h {
				delete(v.hubs, at)
			}
		}
	}
	v.mu.Unlock()
	if unused {
		h.close()
	}
}
