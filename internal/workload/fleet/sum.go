package fleet

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/aggregate"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

// sumLoop writes the status of each object from the reports of its targets.
func (f *fleet) sumLoop() kcp.Loop {
	return kcp.Loop{Name: "workload-status", Workers: 8, Slow: consumers.SlowWrites, Do: f.sum, On: []kcp.Source{
		f.consumers.Wakes(func(k *consumers.Kind, w *unstructured.Unstructured) []kcp.Key {
			return []kcp.Key{engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(w)}.Task()}
		}),
		f.consumers.Assignments.Wakes(func(a *workload.Assignment) []kcp.Key { return []kcp.Key{engine.IDFor(a, a.Spec.Workload).Task()} }),
		f.consumers.Reports.Wakes(func(s *workload.TargetStatus) []kcp.Key { return []kcp.Key{engine.IDFor(s, s.Spec.Workload).Task()} }),
	}}
}

func (f *fleet) sum(ctx context.Context, task kcp.Key) error {
	id := engine.IDOf(task)
	k, w := f.consumers.Kind(id.GroupResource), f.consumers.Workload(id)
	if k == nil || w == nil {
		return nil
	}
	a := f.consumers.Assignment(id)
	if a == nil || a.Spec.Workload.UID != string(w.GetUID()) {
		return nil
	}
	before, _, err := unstructured.NestedMap(w.Object, "status")
	if err != nil {
		return err
	}
	parts := f.parts(k, id, w, a)
	next, err := f.merged(k, w, a, parts, before)
	if err != nil || equality.Semantic.DeepEqual(next, before) || len(next) == 0 && len(before) == 0 {
		return err
	}
	if rest := f.pace.Wait(task, time.Now()); rest > 0 {
		return kcp.After(rest)
	}
	err = f.consumers.SaveStatus(ctx, id, before, next)
	for i := 0; isWrong(err) && i <= len(parts); i++ {
		// A status that the workspace refuses, from one target or from all, must not hide those of the others.
		some := slices.Clone(parts)
		for n := range some {
			if n == i || i == min(len(parts), mostSuspects) {
				drop(&some[n])
			}
		}
		if next, err = f.merged(k, w, a, some, before); err == nil {
			err = f.consumers.SaveStatus(ctx, id, before, next)
		}
		if i == mostSuspects {
			break
		}
	}
	return err
}

// mostSuspects is how many targets are looked at one by one, if a status is not valid.
const mostSuspects = 16

func isWrong(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) }

// drop makes a part one without a status.
func drop(p *aggregate.Part) {
	p.Status, p.Current = nil, false
	if p.Reason == "" {
		p.Reason, p.Message = "InvalidStatus", "the physical cluster reports a status that is not valid"
	}
}

// parts returns what the targets report about an object.
func (f *fleet) parts(k *consumers.Kind, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment) (parts []aggregate.Part) {
	decided := ptr.Equal(a.Spec.Replicas, k.Wants(w)) // else the parts are those of another number
	for _, t := range a.Spec.Targets {
		if t.Phase == workload.Removing || k.Class == workload.Everywhere && t.Reason == string(place.Lost) {
			continue // its replacements are available, or there are none and the last report is old
		}
		p := aggregate.Part{Location: t.Location, Leaving: t.Phase == workload.Evicting && k.Class != workload.Singleton}
		if s := f.consumers.Report(id, t.Key); s != nil && s.Spec.Workload.UID == string(w.GetUID()) {
			if s.Spec.Reported != nil {
				_ = json.Unmarshal(s.Spec.Reported.Raw, &p.Status) // what a cluster reports wrongly is no status
			}
			p.Generation, p.Reason, p.Message, p.Missing = s.Spec.Generation, s.Spec.Reason, s.Spec.Message, s.Spec.Missing
			p.Current = decided && s.Spec.Reason == "" && s.Spec.Observed && ptr.Equal(s.Spec.Replicas, t.Replicas)
		}
		parts = append(parts, p)
	}
	return parts
}

// merged returns the status of an object.
func (f *fleet) merged(k *consumers.Kind, w *unstructured.Unstructured, a *workload.Assignment, parts []aggregate.Part, before map[string]any) (map[string]any, error) {
	reason, message := a.Spec.Reason, a.Spec.Message
	now := time.Now().Truncate(time.Second)
	if k.GroupVersionResource != profile.Deployments() {
		return aggregate.Merge(aggregate.Object{Profile: &k.Profile, Generation: w.GetGeneration(), Status: before, NotScheduled: reason, Message: message}, parts, now), nil
	}
	var o appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(w.Object, &o); err != nil {
		return nil, err
	}
	d := aggregate.Deployment{Generation: o.Generation, Replicas: *k.Wants(w), NotScheduled: reason, Message: message, Status: o.Status}
	if u := o.Spec.Strategy.RollingUpdate; u != nil {
		d.MaxUnavailable = u.MaxUnavailable
	}
	var reports []aggregate.Report
	for _, p := range parts {
		r := aggregate.Report{Location: p.Location, Generation: p.Generation, Current: p.Current, Leaving: p.Leaving, Reason: p.Reason, Message: p.Message, Missing: p.Missing}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(p.Status, &r.Status) != nil {
			drop(&p) // what a cluster reports wrongly is no status
			r.Status, r.Current, r.Reason, r.Message = appsv1.DeploymentStatus{}, p.Current, p.Reason, p.Message
		}
		reports = append(reports, r)
	}
	next := aggregate.Status(d, reports, now)
	if equality.Semantic.DeepEqual(next, o.Status) {
		return before, nil
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(&next)
}
