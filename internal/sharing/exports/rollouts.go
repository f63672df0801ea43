package exports

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// maxUnions limits the contents of rollouts that are kept.
const maxUnions = 64

// A Rollout is the decoded part of an APIExportRollout.
type Rollout struct {
	Name, Export string
	Created      metav1.Time
	// Stages are empty for a rollout that has not begun, or has ended.
	Stages []Stage
	// Ended tells that the rollout has no effect any more.
	Ended bool
}

// A Stage is a ring whose consumers have other schemas than the export.
type Stage struct {
	Ring    apisv1alpha1.RolloutRing
	Schemas map[schema.GroupResource]string
}

func rolloutOf(r *apisv1alpha1.APIExportRollout) (*Rollout, error) {
	out := &Rollout{Name: r.Name, Export: r.Spec.Export, Created: r.CreationTimestamp, Ended: r.Status.Phase == apisv1alpha1.RolloutCompleted}
	if out.Ended {
		return out, nil
	}
	for _, s := range r.Status.Stages {
		stage := Stage{s.Ring, map[schema.GroupResource]string{}}
		for _, name := range s.Schemas {
			if n, err := apisv1alpha1.ParseSchemaName(name); err == nil {
				stage.Schemas[n.GroupResource] = name
			}
		}
		out.Stages = append(out.Stages, stage)
	}
	return out, nil
}

// begun returns the export of a rollout that has begun, and has not ended.
func begun(r *Rollout) []string {
	if len(r.Stages) == 0 {
		return nil
	}
	return []string{r.Export}
}

// Selects reports whether a ring of a rollout of an export selects a consumer.
func Selects(r apisv1alpha1.RolloutRing, e Name, c cluster.Name) bool {
	return slices.Contains(r.Clusters, string(c)) || hundredth(e, c) < uint64(max(0, r.Percent))
}

// hundredth returns a number below 100 that is always the same for a consumer of an export.
func hundredth(e Name, c cluster.Name) uint64 {
	sum := sha256.Sum256([]byte(string(e.Cluster) + "/" + e.Name + "/" + string(c)))
	return binary.BigEndian.Uint64(sum[:]) % 100
}

// Rollout returns the rollout of an export that has begun, nil if there is none.
func (x *Exports) Rollout(e Name) *Rollout {
	if all := x.Rollouts.By(e.Name, e.Cluster); len(all) > 0 {
		return all[0]
	}
	return nil
}

// assigned returns the schema with which a consumer has a resource of an export.
func (x *Exports) assigned(e Name, c cluster.Name, r Exported) Exported {
	rollout := x.Rollout(e)
	if rollout == nil || r.Native {
		return r
	}
	for _, s := range slices.Backward(rollout.Stages) {
		if name := s.Schemas[r.GroupResource]; name != "" && Selects(s.Ring, e, c) {
			r.Schema = name
			return r
		}
	}
	return r
}

// everySchema returns the schemas that consumers of an export have for a resource, the newest
// first.
func (x *Exports) everySchema(e Name, r Exported) []Exported {
	var all []Exported
	if rollout := x.Rollout(e); rollout != nil && !r.Native {
		for _, s := range slices.Backward(rollout.Stages) {
			if name := s.Schemas[r.GroupResource]; name != "" {
				all = append(all, Exported{GroupResource: r.GroupResource, Schema: name, Virtual: r.Virtual})
			}
		}
	}
	all = append(all, r)
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(r Exported) bool {
		again := seen[r.Schema]
		seen[r.Schema] = true
		return again
	})
}

// A unions is a cache of the contents that a view serves during rollouts.
type unions struct {
	mu  sync.Mutex
	all map[string]*catalog.Content // by the hashes of their parts
}

// of returns the union of contents, the newest first.
func (u *unions) of(all []*catalog.Content) (*catalog.Content, error) {
	if len(all) == 1 {
		return all[0], nil
	}
	key := ""
	for _, c := range all {
		key += string(c.Hash[:])
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if c := u.all[key]; c != nil {
		return c, nil
	}
	c, err := catalog.Union(all[0], all[1:]...)
	if err != nil {
		return nil, err
	}
	if len(u.all) >= maxUnions {
		clear(u.all)
	}
	if u.all == nil {
		u.all = map[string]*catalog.Content{}
	}
	u.all[key] = c
	return c, nil
}

// viewed returns how the view of an export serves a resource. While a rollout is under way, that
// is a union in which the objects of all consumers keep their fields.
func (x *Exports) viewed(ctx context.Context, e Name, r Exported) (*catalog.Content, error) {
	var all []*catalog.Content
	for _, one := range x.everySchema(e, r) {
		content, err := x.content(ctx, e.Cluster, one)
		if err != nil {
			return nil, err
		}
		content, _ = x.Converted(e.Cluster, one.Schema, content)
		all = append(all, content)
	}
	return x.unions.of(all)
}
