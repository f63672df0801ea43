package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/consumers"
)

var errServersOwn = errors.New("the server alone writes and deletes these objects; change the Placement, or change or delete the workload, instead")

// rules protect the objects that the engines obey: a user who could write an Assignment could run
// workloads at targets that no Location offers. One who could delete it could make the scheduler start a
// workload elsewhere that still runs. The loops that delete namespaces, APIBindings and workspaces are the
// server's own.
func rules() []kcp.Rule {
	own := []schema.GroupResource{consumers.Assignments().GroupResource(), consumers.TargetStatuses().GroupResource()}
	return []kcp.Rule{{
		Name: "WorkloadAssignments",
		Validate: func(_ context.Context, r kcp.Request) error {
			if !slices.ContainsFunc(own, r.Is) {
				return nil
			}
			if u := r.GetUserInfo(); u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
				return nil
			}
			return r.Forbid(errServersOwn)
		},
	}, {
		Name: "WorkloadCredentials",
		Validate: func(_ context.Context, r kcp.Request) error {
			if spec := podSpecOf(r.GetObject()); r.GetSubresource() == "" && !projects(podSpecOf(r.GetOldObject())) && projects(spec) {
				return r.Forbid(errNoCredentials)
			}
			return nil
		},
	}, {
		Name: "WorkloadAutoscalers",
		Validate: func(_ context.Context, r kcp.Request) error {
			before, _ := r.GetOldObject().(*autoscaling.HorizontalPodAutoscaler)
			a, ok := r.GetObject().(*autoscaling.HorizontalPodAutoscaler)
			if ok && len(a.Spec.Metrics) > mostMetrics && (before == nil || len(a.Spec.Metrics) > len(before.Spec.Metrics)) {
				return r.Forbid(errTooManyMetrics)
			}
			return nil
		},
	}}
}

// mostMetrics is the maximum of metrics of a HorizontalPodAutoscaler. Its controller scans all pods for each metric.
const mostMetrics = 20

var errTooManyMetrics = fmt.Errorf("spec.metrics has more than %d items; remove some", mostMetrics)

var errNoCredentials = errors.New("pods on physical clusters get no credentials of these: remove serviceAccountToken and podCertificate from the projected volumes, and use a Secret of the workspace instead")

// podSpecOf returns the specification of the pods of a workload, nil for other objects.
func podSpecOf(o runtime.Object) *core.PodSpec {
	switch w := o.(type) {
	case *apps.Deployment:
		return &w.Spec.Template.Spec
	case *apps.ReplicaSet:
		return &w.Spec.Template.Spec
	case *apps.StatefulSet:
		return &w.Spec.Template.Spec
	case *apps.DaemonSet:
		return &w.Spec.Template.Spec
	case *batch.Job:
		return &w.Spec.Template.Spec
	case *batch.CronJob:
		return &w.Spec.JobTemplate.Spec.Template.Spec
	}
	return nil
}

// projects reports whether a volume of pods has credentials of the physical cluster.
func projects(spec *core.PodSpec) bool {
	return spec != nil && slices.ContainsFunc(spec.Volumes, func(v core.Volume) bool {
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s core.VolumeProjection) bool {
			return s.ServiceAccountToken != nil || s.PodCertificate != nil
		})
	})
}
