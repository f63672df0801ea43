package consumers

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/profile"
	"github.com/unforked/kcp/internal/workload/push"
	"github.com/unforked/kcp/internal/workload/syncer"
)

// Source returns what agents work from, until ended is closed.
func (c *Cache) Source(ended <-chan struct{}) *syncer.Source {
	return &syncer.Source{
		Of: c.Desired, Assigned: c.assigned, Needs: c.distinct, State: c.state, Assignments: c.Assignments, Reports: c.Reports,
		Profiles: c.custom, Follow: c.agents.add, Ready: func(ctx context.Context) error { return c.complete(ctx, ended) }, Ended: ended,
	}
}

// complete waits until the caches are complete that agents need.
func (c *Cache) complete(ctx context.Context, ended <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	if !objects.Await(ctx, c.Assignments.Ready(), c.Reports.Ready()) {
		return apierrors.NewServiceUnavailable("the server starts or stops; try again")
	}
	if len(c.Assignments.List("*")) == 0 {
		return nil // a compute workspace without consumers has no caches of their objects
	}
	c.need()
	if !objects.Await(ctx, c.settled) {
		return apierrors.NewServiceUnavailable("the server starts or stops; try again")
	}
	return nil
}

// assigned returns the objects that have an Assignment with a target.
func (c *Cache) assigned(target string) (all []engine.ID) {
	for _, key := range c.Assignments.By(byTarget, target) {
		if a := c.Assignments.Get(key); a != nil {
			all = append(all, engine.IDFor(a, a.Spec.Workload))
		}
	}
	return all
}

// distinct returns what an object refers to, each once.
func (c *Cache) distinct(id engine.ID) (all []engine.ID) {
	for _, of := range c.needs(id) {
		if !slices.Contains(all, of) {
			all = append(all, of)
		}
	}
	return all
}

// state returns a text that changes whenever a referenced object changes. used reports whether an object that refers
// to it has a part at the target.
func (c *Cache) state(target string, id engine.ID) (state string, used bool) {
	if !c.usedAt(target, id) {
		return "", false
	}
	if o := c.Workload(id); o != nil {
		state = push.Fingerprint([]byte(string(o.GetUID()) + "/" + o.GetResourceVersion()))[:16]
	}
	return state, true
}

// custom returns the ResourceProfiles that are in effect.
func (c *Cache) custom() (all []*workload.ResourceProfile) {
	for _, r := range c.Profiles.List("*") {
		p := profile.Of(r)
		if k := c.Kind(p.GroupResource()); k != nil && sameProfile(k.Profile, p) {
			all = append(all, r)
		}
	}
	return all
}
