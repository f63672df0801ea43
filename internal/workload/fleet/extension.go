// Package fleet runs the workloads of workspaces on physical clusters. It is an extension of
// package kcp. It hides when the parts of a fleet begin and end, the connections to physical clusters
// and what these tell about their health, and how the status of workloads and Placements is written.
//
// A fleet is a compute workspace with at least one SyncTarget. Goroutines, caches and timers
// exist per fleet and per target only. Without a SyncTarget the server has none of them.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/autoscale"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/export"
	"github.com/unforked/kcp/internal/workload/kinds"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/pods"
	"github.com/unforked/kcp/internal/workload/push"
	"github.com/unforked/kcp/internal/workload/review"
	"github.com/unforked/kcp/internal/workload/syncer"
)

// Options configure the extension. The zero value of a field means its default.
type Options struct {
	// Renew is the time between two probes of a physical cluster, 10 s by default.
	Renew time.Duration
	// Expire is the time without a successful probe after which a physical cluster is
	// unreachable, 40 s by default.
	Expire time.Duration
	// Stop is how much longer than the grace period of its pods an agent may take to stop a workload
	// when its lease has run out, 1 minute by default.
	Stop time.Duration
	// Evictions is how many workloads begin to leave the physical clusters of a failure domain that do
	// not answer, 10 per second and 50 at once by default.
	Evictions place.Rate
	// Autoscale is the time between two evaluations of a HorizontalPodAutoscaler, 15 s by default.
	Autoscale time.Duration
	// Retire is how long the deletion of a compute workspace waits for the physical clusters to remove the
	// copies of workloads, 10 minutes by default.
	Retire time.Duration
	// Objects is the maximum of objects in a physical cluster in push mode, 20,000 by default.
	Objects int
	// Streams is the time between two checks of an open stream or watch of pods, 30 s by default.
	Streams time.Duration
	// View is the view of agents. The default is a new one.
	View *syncer.View

	pods *pods.Pods
}

// Extension returns the extension for a server.
func Extension(o Options) kcp.Extension {
	o.Renew, o.Expire, o.Stop = cmp.Or(o.Renew, 10*time.Second), cmp.Or(o.Expire, 40*time.Second), cmp.Or(o.Stop, time.Minute)
	o.Autoscale, o.Retire = cmp.Or(o.Autoscale, autoscale.Period), cmp.Or(o.Retire, 10*time.Minute)
	o.Evictions = cmp.Or(o.Evictions, place.Normal())
	if o.View == nil {
		o.View = &syncer.View{}
	}
	o.View.Lease = o.Expire
	links := push.NewLinks(o.View.Reach)
	served := pods.New(links.Reach)
	served.Again = cmp.Or(o.Streams, served.Again)
	o.pods = served
	reviews := review.New(served.Compute)
	return kcp.Extension{
		Offers:   append(kinds.Offers(served.Storage()), usage(served)),
		Rules:    append(rules(), reviews.Rule()),
		Unstored: []schema.GroupResource{review.Resource()},
		// A workload is gone when its copies are. The first two say where these are, and new pods replace
		// deleted ones until then.
		DeletedLast:  []schema.GroupResource{consumers.Assignments().GroupResource(), consumers.TargetStatuses().GroupResource(), {Resource: "pods"}},
		Views:        []kcp.View{o.View},
		Subresources: longRunning(),
		Storage:      served.WithEvents,
		Peers:        map[string]http.Handler{syncer.TunnelsTo: http.HandlerFunc(o.View.ServePeer)},
		Loops: func(s *kcp.Server) ([]kcp.Loop, error) {
			links.Start(s)
			view := func(home kcp.ClusterName, of string) (*rest.Config, error) { return objects.View(s, home, of) }
			if err := served.Start(s, view); err != nil {
				return nil, err
			}
			return loops(s, o, reviews)
		},
	}
}

// longRunning returns the subresources that have no timeout. The view serves tunnels, and the storage of pods the
// others.
func longRunning() []kcp.Subresource {
	all := []kcp.Subresource{{Resource: syncTargets().GroupResource(), Name: syncer.Tunnel, LongRunning: true, Handler: http.NotFoundHandler()}}
	for _, name := range []string{"log", "exec", "attach", "portforward"} {
		all = append(all, kcp.Subresource{Resource: pods.Resource().GroupResource(), Name: name, LongRunning: true})
	}
	return all
}

// usage offers the usage of pods.
func usage(served *pods.Pods) kcp.Offer {
	return kcp.Offer{
		Group: kcp.Group{Name: metrics.GroupName, Build: func(generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) { return served.Metrics(), nil }},
		Resources: []kcp.OfferedKind{{GroupResource: pods.MetricsResource().GroupResource(), Versions: []string{pods.MetricsResource().Version},
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: pods.MetricsResource().Resource, Kind: "PodMetrics"}}},
	}
}

func loops(s *kcp.Server, o Options, reviews *review.Reviewer) ([]kcp.Loop, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := export.EnsureRoot(ctx, s); err != nil {
		return nil, fmt.Errorf("export %s: %w", workload.Export, err)
	}
	m, err := newManager(s, o)
	if err != nil {
		return nil, err
	}
	reviews.Start(review.Options{Server: s, Targets: m.writeTargets, Locations: m.writeLocations, Health: o.health, Stop: o.Stop})
	if err := o.View.Start(s, m.source); err != nil {
		return nil, err
	}
	return []kcp.Loop{m.leadLoop()}, nil
}

func syncTargets() schema.GroupVersionResource {
	return workload.GroupVersion.WithResource("synctargets")
}

func locations() schema.GroupVersionResource {
	return scheduling.GroupVersion.WithResource("locations")
}
