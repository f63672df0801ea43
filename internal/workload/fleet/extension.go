// Package fleet runs the workloads of workspaces on physical clusters. It is an extension of
// package kcp. It hides what the server does for a SyncTarget: the connection, the scheduler of
// the workspaces that bind its compute workspace, and the status of their workloads.
//
// A fleet is a compute workspace with at least one SyncTarget. Goroutines, caches and timers
// exist per fleet and per target only. Without a SyncTarget the server watches SyncTargets and
// Locations, and does nothing else.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/kinds"
	"github.com/unforked/kcp/internal/workload/syncer"
)

// Options configure the extension. The zero value of a field means its default.
type Options struct {
	// Renew is the time between two probes of a physical cluster, 10 s by default.
	Renew time.Duration
	// Expire is the time without a successful probe after which a physical cluster is
	// unreachable, 40 s by default.
	Expire time.Duration
	// View is the view of agents. The default is a new one.
	View *syncer.View
}

// Extension returns the extension for a server.
func Extension(o Options) kcp.Extension {
	o.Renew, o.Expire = cmp.Or(o.Renew, 10*time.Second), cmp.Or(o.Expire, 40*time.Second)
	if o.View == nil {
		o.View = &syncer.View{}
	}
	return kcp.Extension{
		Offers: kinds.Offers(),
		Rules:  rules(),
		Views:  []kcp.View{o.View},
		// The view serves tunnels. They are declared here so that they have no timeout.
		Subresources: []kcp.Subresource{{Resource: syncTargets().GroupResource(), Name: syncer.Tunnel, LongRunning: true, Handler: http.NotFoundHandler()}},
		Loops:        func(s *kcp.Server) ([]kcp.Loop, error) { return loops(s, o) },
	}
}

// root is the workspace of the export of SyncTargets and Locations.
const root = "root"

func loops(s *kcp.Server, o Options) ([]kcp.Loop, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := ensureRoot(ctx, s); err != nil {
		return nil, fmt.Errorf("export %s: %w", workload.Export, err)
	}
	m, err := newManager(s, o)
	if err != nil {
		return nil, err
	}
	if err := o.View.Start(s, m.source); err != nil {
		return nil, err
	}
	return []kcp.Loop{m.targetsLoop(), m.locationsLoop()}, nil
}

func syncTargets() schema.GroupVersionResource {
	return workload.GroupVersion.WithResource("synctargets")
}

func locations() schema.GroupVersionResource {
	return scheduling.GroupVersion.WithResource("locations")
}

func placements() schema.GroupVersionResource {
	return scheduling.GroupVersion.WithResource("placements")
}

func assignments() schema.GroupVersionResource {
	return workload.GroupVersion.WithResource("assignments")
}

func targetStatuses() schema.GroupVersionResource {
	return workload.GroupVersion.WithResource("targetstatuses")
}

func resourceProfiles() schema.GroupVersionResource {
	return workload.GroupVersion.WithResource("resourceprofiles")
}
