package fleet

import (
	"context"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/aggregate"
	"github.com/unforked/kcp/internal/workload/engine"
)

// sumLoop writes the status of each workload from the reports of its targets.
func (f *fleet) sumLoop() kcp.Loop {
	return kcp.Loop{Name: "workload-status", Workers: 8, Do: f.sum, On: []kcp.Source{
		f.workloads.Changed(),
		f.assignments.Wakes(func(a *workload.Assignment) []kcp.Key { return []kcp.Key{workloadOf(a, a.Spec.Workload)} }),
		f.reports.Wakes(func(s *workload.TargetStatus) []kcp.Key { return []kcp.Key{workloadOf(s, s.Spec.Workload)} }),
	}}
}

func (f *fleet) sum(ctx context.Context, key kcp.Key) error {
	w, a := f.workloads.Get(key), f.assignmentOf(key)
	if w == nil || a == nil || a.Spec.Workload.UID != string(w.GetUID()) {
		return nil
	}
	var o appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(w.Object, &o); err != nil {
		return err
	}
	d := aggregate.Deployment{Generation: o.Generation, Replicas: *replicasOf(w), NotScheduled: a.Spec.Reason, Message: a.Spec.Message, Status: o.Status}
	if u := o.Spec.Strategy.RollingUpdate; u != nil {
		d.MaxUnavailable = u.MaxUnavailable
	}
	var reports []aggregate.Report
	decided := equal(a.Spec.Replicas, &d.Replicas) // else the parts are those of another number
	for _, t := range a.Spec.Targets {
		if t.Phase == workload.Removing {
			continue // its replacements are available
		}
		r := aggregate.Report{Location: t.Location, Leaving: t.Phase == workload.Evicting}
		if s := f.reportOf(key, t.Key); s != nil && s.Spec.Workload.UID == string(w.GetUID()) {
			status, err := deploymentStatus(s.Spec.Reported)
			if err != nil {
				return err
			}
			r.Generation, r.Status, r.Reason, r.Message = s.Spec.Generation, status, s.Spec.Reason, s.Spec.Message
			r.Current = decided && s.Spec.Reason == "" && s.Spec.Observed && equal(s.Spec.Replicas, t.Replicas)
		}
		reports = append(reports, r)
	}
	next := aggregate.Status(d, reports, time.Now().Truncate(time.Second))
	if equality.Semantic.DeepEqual(next, o.Status) {
		return nil
	}
	if rest := f.pace.wait(key, time.Now()); rest > 0 {
		return kcp.After(rest)
	}
	return f.writeStatus(ctx, w, next)
}

// A pace limits the writes of statuses to one per second and object.
type pace struct {
	mu   sync.Mutex
	last map[kcp.Key]time.Time // of objects written in the last second, and of some before
}

// swept is the number of entries above which those that are no longer needed are dropped.
const swept = 1024

// wait returns how long to wait before the object at key may be written. If that is zero, the
// caller writes it now.
func (p *pace) wait(key kcp.Key, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rest := time.Second - now.Sub(p.last[key]); rest > 0 {
		return rest
	}
	if len(p.last) > swept || p.last == nil {
		recent := map[kcp.Key]time.Time{}
		for k, at := range p.last {
			if now.Sub(at) < time.Second {
				recent[k] = at
			}
		}
		p.last = recent
	}
	p.last[key] = now
	return 0
}

func deploymentStatus(reported *runtime.RawExtension) (s appsv1.DeploymentStatus, err error) {
	if reported != nil && len(reported.Raw) > 0 {
		err = json.Unmarshal(reported.Raw, &s)
	}
	return s, err
}

// writeStatus replaces the status of a workload.
func (f *fleet) writeStatus(ctx context.Context, w *unstructured.Unstructured, next appsv1.DeploymentStatus) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&next)
	if err != nil {
		return err
	}
	old, _, err := unstructured.NestedMap(w.Object, "status")
	if err != nil {
		return err
	}
	for field := range old {
		if _, ok := content[field]; !ok {
			content[field] = nil
		}
	}
	patch, err := json.Marshal(map[string]any{"status": content})
	if err != nil {
		return err
	}
	in, err := dynamic.NewForConfig(client.Cluster(f.view, string(kcp.KeyOf(w).Cluster)))
	if err != nil {
		return err
	}
	_, err = in.Resource(engine.Deployments()).Namespace(w.GetNamespace()).Patch(ctx, w.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return ignoreGone(err)
}

// placementLoop writes the status of Placements.
func (f *fleet) placementLoop() kcp.Loop {
	return kcp.Loop{Name: "workload-placements", Do: f.placement, On: []kcp.Source{
		f.placements.Changed(),
		f.assignments.Wakes(func(a *workload.Assignment) []kcp.Key {
			return []kcp.Key{{Cluster: kcp.KeyOf(a).Cluster, Name: a.Spec.Placement}}
		}),
		f.targets.Wakes(func(t *workload.SyncTarget) (keys []kcp.Key) {
			if kcp.KeyOf(t).Cluster == f.compute && t.Status.LastSyncerHeartbeatTime == nil {
				for _, p := range f.placements.List("*") {
					keys = append(keys, kcp.KeyOf(p))
				}
			}
			return keys
		}),
	}}
}

func (f *fleet) placement(ctx context.Context, key kcp.Key) error {
	p := f.placements.Get(key)
	if p == nil || p.DeletionTimestamp != nil {
		return nil
	}
	next := p.Status.DeepCopy()
	next.Phase = scheduling.Unbound
	state := conditions.Condition{Type: ready, Status: metav1.ConditionTrue}
	targets, _ := f.targetsFor(p)
	selected := 0
	for _, t := range targets {
		if t.Location != "" {
			selected++
		}
	}
	switch {
	case selected == 0:
		next.Phase = scheduling.Pending
		state = conditions.Condition{Type: ready, Status: metav1.ConditionFalse, Severity: conditions.SeverityError, Reason: scheduling.NoLocation,
			Message: "spec.locationSelectors select no Location with a physical cluster; they match the labels of Locations in the compute workspace"}
	default:
		for _, a := range f.assignments.List(key.Cluster) {
			if a.Spec.Placement == p.Name {
				next.Phase = scheduling.Bound
				break
			}
		}
	}
	if !next.Conditions.Set(state) && next.Phase == p.Status.Phase {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": next})
	if err != nil {
		return err
	}
	in, err := f.placementsIn.In(string(key.Cluster))
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, key.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return ignoreGone(err)
}
