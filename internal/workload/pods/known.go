package pods

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
)

const (
	// mostWarnings is the maximum of Locations that a list warns of, mostKnown that of workloads
	// in a warning.
	mostWarnings, mostKnown = 10, 5
)

// A gap is what is missing in a list, for one reason.
type gap struct {
	text     string
	parts    []*part
	replicas int32
}

// gaps returns what is missing in a list, by reason.
func gaps(parts []*part, failed map[*part]error) (all []*gap) {
	by := map[string]*gap{}
	for _, of := range parts {
		err := failed[of]
		if err == nil {
			continue
		}
		g := by[err.Error()]
		if g == nil {
			g = &gap{text: err.Error()}
			by[g.text] = g
			all = append(all, g)
		}
		g.parts = append(g.parts, of)
		g.replicas += of.replicas
	}
	slices.SortFunc(all, func(a, b *gap) int { return cmp.Compare(a.text, b.text) })
	return all[:min(len(all), mostWarnings)]
}

// warn adds a warning to the response: what is missing in a list, and what is known of it.
func (p *Pods) warn(ctx context.Context, w *workspace, failed map[*part]error, what string) {
	all := gaps(w.parts, failed)
	if len(all) == 0 {
		return
	}
	reports, err := p.reports(ctx, w)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("cannot read the last reports about workloads", "cluster", w.cluster, "err", err)
	}
	for _, g := range all {
		text := g.text
		if g.replicas > 0 {
			text += fmt.Sprintf(": its %s are missing here (%d replicas are assigned to it)", what, g.replicas)
		}
		warning.AddWarning(ctx, "", text+g.known(reports))
	}
}

// reports returns the last reports about the workloads of a workspace.
func (p *Pods) reports(ctx context.Context, w *workspace) ([]workload.TargetStatus, error) {
	cfg, err := p.started.Load().view(w.compute, workload.KubernetesExport)
	if err != nil {
		return nil, err
	}
	of, err := client.New[*workload.TargetStatus, *workload.TargetStatusList](cfg, string(w.cluster), workload.GroupVersion.WithResource("targetstatuses"))
	if err != nil {
		return nil, err
	}
	list, err := of.Namespace(w.namespace).List(context.WithoutCancel(ctx), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// known says what the targets of a gap reported last about workloads with pods.
func (g *gap) known(reports []workload.TargetStatus) string {
	var all []string
	heard := map[string]time.Time{} // by the keys of targets
	for i := range reports {
		r := &reports[i]
		for _, of := range g.parts {
			if r.Spec.Key != of.Key || r.Namespace != of.Namespace || r.Spec.Reported == nil {
				continue
			}
			if count := counted(r.Spec.Reported.Raw); count != "" {
				all = append(all, fmt.Sprintf("%s/%s %s", strings.ToLower(r.Spec.Workload.Kind), r.Spec.Workload.Name, count))
			}
			at := reportedAt(r)
			if beat := of.target.Status.LastSyncerHeartbeatTime; beat != nil && beat.After(at) {
				at = beat.Time
			}
			if at.After(heard[of.Key]) {
				heard[of.Key] = at
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	more := ""
	if n := len(all) - mostKnown; n > 0 {
		all, more = all[:mostKnown], fmt.Sprintf(" and %d more", n)
	}
	when := ""
	if len(heard) > 0 { // of several targets, the one that was heard of the longest ago
		when = ", at " + slices.MinFunc(slices.Collect(maps.Values(heard)), time.Time.Compare).UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("; last known%s: %s%s", when, strings.Join(all, ", "), more)
}

// reportedAt returns when a report was last written. This may be after the last recorded heartbeat, which is written
// once a minute.
func reportedAt(r *workload.TargetStatus) (at time.Time) {
	for _, of := range r.ManagedFields {
		if of.Time != nil && of.Time.After(at) {
			at = of.Time.Time
		}
	}
	return at
}

// counted returns the pods of a workload by its status, empty if that does not count them.
func counted(status []byte) string {
	var s struct {
		Replicas, ReadyReplicas             *int32
		DesiredNumberScheduled, NumberReady *int32
		Active                              *int32
	}
	if json.Unmarshal(status, &s) != nil {
		return ""
	}
	ready := func(n *int32) int32 {
		if n == nil {
			return 0
		}
		return *n
	}
	switch {
	case s.Replicas != nil:
		return fmt.Sprintf("%d of %d ready", ready(s.ReadyReplicas), *s.Replicas)
	case s.DesiredNumberScheduled != nil:
		return fmt.Sprintf("%d of %d ready", ready(s.NumberReady), *s.DesiredNumberScheduled)
	case s.Active != nil:
		return fmt.Sprintf("%d active", *s.Active)
	}
	return ""
}
