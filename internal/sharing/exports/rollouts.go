package exports

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
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

	key string // covers all stages
}

// A Stage is a ring whose consumers have other schemas than the export.
type Stage struct {
	of      apisv1alpha1.RolloutStage
	Schemas map[schema.GroupResource]string
}

func rolloutOf(r *apisv1alpha1.APIExportRollout) (*Rollout, error) {
	out := &Rollout{Name: r.Name, Export: r.Spec.Export, Created: r.CreationTimestamp, Ended: r.Status.Phase == apisv1alpha1.RolloutCompleted}
	if out.Ended {
		return out, nil
	}
	text, err := json.Marshal(r.Status.Stages)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	out.key = string(sum[:])
	for _, s := range r.Status.Stages {
		stage := Stage{s, map[schema.GroupResource]string{}}
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

// Selects reports whether a stage of a rollout of an export has a consumer.
func Selects(s apisv1alpha1.RolloutStage, e Name, c cluster.Name) bool {
	_, selected := slices.BinarySearch(s.Selected, string(c))
	return selected || slices.Contains(s.Ring.Clusters, string(c)) || hundredth(e, c) < uint64(max(0, s.Ring.Percent))
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
	return x.Rollout(e).assigned(e, c, r)
}

// assigned returns the schema with which a consumer has a resource of the export of a rollout. Nil
// assigns the one of the export.
func (o *Rollout) assigned(e Name, c cluster.Name, r Exported) Exported {
	if o == nil || r.Native {
		return r
	}
	for _, s := range slices.Backward(o.Stages) {
		if name := s.Schemas[r.GroupResource]; name != "" && Selects(s.of, e, c) {
			r.Schema = name
			return r
		}
	}
	return r
}

// every returns the schemas that consumers of the export of a rollout may have for a resource, the
// newest first.
func (o *Rollout) every(r Exported) []Exported {
	var all []Exported
	if o != nil && !r.Native {
		for _, s := range slices.Backward(o.Stages) {
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

// of returns the union of parts.
func (u *unions) of(p *catalog.Parts) (*catalog.Content, error) {
	if len(p.Contents) == 1 {
		return p.Contents[0], nil
	}
	key := p.Key
	for _, c := range p.Contents {
		key += string(c.Hash[:])
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if c := u.all[key]; c != nil {
		return c, nil
	}
	c, err := catalog.Union(p)
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

// viewed returns how the view of an export serves a resource. While a rollout is under way, that is a
// union, in which each object is read with the schema of its consumer.
func (x *Exports) viewed(e Name, r Exported, content func(Exported) (*catalog.Content, error)) (*catalog.Content, error) {
	rollout := x.Rollout(e)
	parts, index := &catalog.Parts{}, map[string]int{} // by schema
	for _, one := range rollout.every(r) {
		c, err := content(one)
		if err != nil {
			return nil, err
		}
		index[one.Schema] = len(parts.Contents)
		c, _ = x.Converted(e.Cluster, one.Schema, c)
		parts.Contents = append(parts.Contents, c)
	}
	if len(parts.Contents) > 1 {
		parts.Of = func(c cluster.Name) int { return index[rollout.assigned(e, c, r).Schema] }
		parts.Key = fmt.Sprintf("%s/%s/%s/%s", e.Cluster, e.Name, r.Schema, rollout.key)
	}
	return x.unions.of(parts)
}

// OfIdentity returns how the objects of an identity are served to requests to all clusters. It reports
// false if not exactly one export has the resource, or the definition of a schema is missing.
func (x *Exports) OfIdentity(identity string, gr schema.GroupResource) (*catalog.Content, bool) {
	var name Name
	var found []Exported
	for _, c := range x.ClustersBy(identity) {
		for _, e := range x.By(identity, c) {
			i := slices.IndexFunc(e.Resources, func(r Exported) bool { return r.GroupResource == gr && r.Virtual == nil })
			if !e.Deleting && i >= 0 {
				name, found = Name{c, e.Name}, append(found, e.Resources[i])
			}
		}
	}
	if len(found) != 1 || found[0].Native {
		return nil, false
	}
	content, err := x.viewed(name, found[0], func(r Exported) (*catalog.Content, error) {
		if c, ok := x.definitions.Bound(x.schemas.get(name.Cluster, r.Schema).uid, false); ok {
			return c, nil
		}
		return nil, InvalidSchema("the definition is missing")
	})
	return content, err == nil
}
