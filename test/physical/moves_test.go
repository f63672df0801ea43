//go:build unix

package physical

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// A part is a copy of a Deployment in a physical cluster.
type part struct {
	uid        types.UID
	generation int64
	replicas   int32
}

// A layout has the copies in some physical clusters, by cluster and name.
type layout map[string]map[string]part

// layout returns the copies that physical clusters have.
func (w *world) layout(t *testing.T, clusters ...string) layout {
	t.Helper()
	all := layout{}
	for _, name := range clusters {
		list, err := w.clusters[name].AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{LabelSelector: workload.OwnerLabel})
		if err != nil {
			t.Fatal(err)
		}
		all[name] = map[string]part{}
		for i := range list.Items {
			all[name][list.Items[i].Name] = partOf(&list.Items[i])
		}
	}
	return all
}

func partOf(d *appsv1.Deployment) part { return part{d.UID, d.Generation, *d.Spec.Replicas} }

// replicas returns those of the copies of a Deployment, the most first.
func (l layout) replicas(name string) (all []int32) {
	for _, parts := range l {
		if p, ok := parts[name]; ok {
			all = append(all, p.replicas)
		}
	}
	slices.SortFunc(all, func(a, b int32) int { return int(b - a) })
	return all
}

// only returns the copies in some of the clusters.
func (l layout) only(clusters ...string) layout {
	some := layout{}
	for _, name := range clusters {
		some[name] = l[name]
	}
	return some
}

// unchanged fails the test if a copy was created, deleted or changed.
func (l layout) unchanged(t *testing.T, now layout) {
	t.Helper()
	for cluster, parts := range l {
		for name, p := range parts {
			if now[cluster][name] != p {
				t.Errorf("%s at %s was %+v, and is %+v", name, cluster, p, now[cluster][name])
			}
		}
		if len(now[cluster]) != len(parts) {
			t.Errorf("%s had %d copies, and has %d", cluster, len(parts), len(now[cluster]))
		}
	}
}

// replaced expects that the other clusters took exactly the replicas of one: their copies are the same objects, none got
// fewer replicas or was written to without need, and they got as many as the one had. It returns that number.
func (l layout) replaced(t *testing.T, at string, now layout) (moved int32) {
	t.Helper()
	names := map[string]bool{}
	for _, all := range []layout{l, now} {
		for _, parts := range all {
			for name := range parts {
				names[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		gained := int32(0)
		for cluster := range l {
			before, had := l[cluster][name]
			after, has := now[cluster][name]
			switch {
			case cluster == at:
				continue
			case had && (after.uid != before.uid || after.replicas < before.replicas),
				had && after.replicas == before.replicas && after.generation != before.generation,
				had && after.generation > before.generation+1, // one write is enough
				!had && has && after.generation != 1:
				t.Errorf("%s at %s was %+v, and is %+v", name, cluster, before, after)
			}
			gained += after.replicas - before.replicas
		}
		if lost := l[at][name].replicas; gained != lost {
			t.Errorf("%s had %d replicas at %s, and got %d elsewhere", name, lost, at, gained)
		}
		moved += gained
	}
	return moved
}

// podsAt returns the UIDs of the pods in some physical clusters.
func (w *world) podsAt(t *testing.T, clusters ...string) map[types.UID]string {
	t.Helper()
	all := map[types.UID]string{}
	for _, name := range clusters {
		list, err := w.clusters[name].CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			all[p.UID] = name + "/" + p.Name
		}
	}
	return all
}

// complete waits until no rollout of a Deployment in the workspace goes on: all replicas are available.
func (s *tenant) complete(t *testing.T, limit time.Duration) {
	t.Helper()
	within(t, limit, "all Deployments are complete", func() error {
		list, err := s.AppsV1().Deployments("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		waits, why := 0, error(nil)
		for i := range list.Items {
			d := &list.Items[i]
			if err := rollout(d); err != nil || d.Status.AvailableReplicas != *d.Spec.Replicas {
				waits, why = waits+1, fmt.Errorf("%s, %d of %d available: %w", d.Name, d.Status.AvailableReplicas, *d.Spec.Replicas, err)
			}
		}
		if waits > 0 {
			return fmt.Errorf("%d of %d, such as %w", waits, len(list.Items), why)
		}
		return nil
	})
}
