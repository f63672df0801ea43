package pods

import (
	"slices"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/pods/shown"
)

// A part is what one target runs of one namespace of a workspace.
type part struct {
	shown.Origin
	workspace *workspace
	target    *workload.SyncTarget
	replicas  int32 // that are assigned
}

// part returns a part of the workspace, which runs at a target.
func (w *workspace) part(from shown.Origin, target *workload.SyncTarget) *part {
	p := &part{Origin: from, workspace: w, target: target}
	p.Physical = p.locator().Physical()
	return p
}

// locator returns where the objects of the part are from.
func (p *part) locator() engine.Locator {
	return engine.Locator{Cluster: string(p.workspace.cluster), Namespace: p.Namespace, Target: p.Key}
}

// A workspace is what is known about the workspace of a request.
type workspace struct {
	cluster, compute kcp.ClusterName
	namespace        string // of the request, empty for all
	assignments      *client.Client[*workload.Assignment, *workload.AssignmentList]
	parts            []*part
}

// find fills the parts from the Assignments of the workspace and the targets of the compute
// workspace.
func (w *workspace) find(all []workload.Assignment, targets []workload.SyncTarget) {
	byKey := map[string]*workload.SyncTarget{}
	for i := range targets {
		t := &targets[i]
		byKey[keyOf(w.compute, t)] = t
	}
	parts, workloads := map[[2]string]*part{}, shown.NewWorkloads(all)
	for _, a := range all {
		for _, t := range a.Spec.Targets {
			if byKey[t.Key] == nil {
				continue // it was unregistered
			}
			at := [2]string{a.Namespace, t.Key}
			if parts[at] == nil {
				parts[at] = w.part(shown.Origin{Namespace: a.Namespace, Key: t.Key, Location: t.Location, Workloads: workloads}, byKey[t.Key])
				w.parts = append(w.parts, parts[at])
			}
			if t.Replicas != nil {
				parts[at].replicas += *t.Replicas
			}
		}
	}
	slices.SortFunc(w.parts, func(a, b *part) int {
		return slices.Compare([]string{a.Namespace, a.Key}, []string{b.Namespace, b.Key})
	})
}

// keyOf returns the key of a SyncTarget of a compute workspace.
func keyOf(compute kcp.ClusterName, t *workload.SyncTarget) string {
	return engine.TargetKey(string(compute), t.Name, string(t.UID))
}
