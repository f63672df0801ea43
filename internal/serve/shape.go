// Package serve hides how custom resources are served: one handler, unmodified
// upstream's, for each distinct schema, however many clusters serve it, and
// discovery and OpenAPI for each distinct set of schemas.
package serve

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// A Hash identifies a content: SHA-256 over all of a definition that changes how
// its resources are served.
type Hash [sha256.Size]byte

// A Content is a definition of custom resources without whose it is. Equal
// definitions in any number of clusters are one Content. It is never changed.
type Content struct {
	// Hash is over everything that matters to a request.
	Hash Hash
	// Lasting is over everything that matters to a watch: not whether the resource
	// is on its way out.
	Lasting Hash
	// Definition is named as in its clusters, and Established. Its UID is made of
	// the hash. It is without its schemas, which are many times as large as what
	// they are read from.
	Definition *apiextensionsv1.CustomResourceDefinition
	text       []byte // of a contentText
}

// contentText is what a content is made of.
type contentText struct {
	Name  string
	Spec  apiextensionsv1.CustomResourceDefinitionSpec
	Names apiextensionsv1.CustomResourceDefinitionNames
}

// Whole returns the definition with its schemas.
func (c *Content) Whole() (*apiextensionsv1.CustomResourceDefinition, error) {
	var t contentText
	if err := json.Unmarshal(c.text, &t); err != nil {
		return nil, err
	}
	whole := *c.Definition
	whole.Spec = t.Spec
	return &whole, nil
}

// NewContent returns the content of a definition whose names are accepted.
func NewContent(crd *apiextensionsv1.CustomResourceDefinition) (*Content, error) {
	crd = crd.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	names := crd.Status.AcceptedNames
	if names.Plural == "" {
		names = crd.Spec.Names
	}
	text, err := json.Marshal(contentText{crd.Name, crd.Spec, names})
	if err != nil {
		return nil, err
	}
	c := &Content{Lasting: sha256.Sum256(text), text: text}
	c.Hash = c.Lasting
	// Established long ago: upstream's handler waits a while after a definition was
	// established, for other servers to learn of it.
	conditions := since(time.Unix(0, 0), apiextensionsv1.NamesAccepted, apiextensionsv1.Established)
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating) {
		c.Hash = sha256.Sum256(slices.Concat(text, []byte(apiextensionsv1.Terminating)))
		conditions = since(time.Unix(0, 0), apiextensionsv1.NamesAccepted, apiextensionsv1.Established, apiextensionsv1.Terminating)
	}
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema = nil
	}
	c.Definition = &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: crd.Name, UID: types.UID(fmt.Sprintf("%x", c.Hash))},
		Spec:       crd.Spec,
		Status:     apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names, Conditions: conditions},
	}
	return c, nil
}

// since returns conditions that are true since t.
func since(t time.Time, all ...apiextensionsv1.CustomResourceDefinitionConditionType) []apiextensionsv1.CustomResourceDefinitionCondition {
	out := make([]apiextensionsv1.CustomResourceDefinitionCondition, len(all))
	for i, c := range all {
		out[i] = apiextensionsv1.CustomResourceDefinitionCondition{Type: c, Status: apiextensionsv1.ConditionTrue, LastTransitionTime: metav1.NewTime(t)}
	}
	return out
}

// GroupResource returns what the content defines.
func (c *Content) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: c.Definition.Spec.Group, Resource: c.Definition.Status.AcceptedNames.Plural}
}

// A Served is a custom resource as one cluster has it.
type Served struct {
	Content *Content
	// Identity of the export that its objects are stored under, or empty.
	Identity string
}

// A Shape is the set of custom resources that a cluster serves. Clusters that
// serve the same share one. It is never changed.
type Shape struct {
	// Key is equal for shapes that look the same to clients.
	Key    Hash
	served []Served
	by     map[schema.GroupResource]Served
}

// NewShape returns the shape of what is served. Of several of one group and
// resource the first counts.
func NewShape(served ...Served) *Shape {
	s := &Shape{by: map[schema.GroupResource]Served{}}
	for _, r := range served {
		gr := r.Content.GroupResource()
		if _, taken := s.by[gr]; !taken {
			s.by[gr] = r
			s.served = append(s.served, r)
		}
	}
	slices.SortFunc(s.served, func(a, b Served) int { return slices.Compare(a.Content.Hash[:], b.Content.Hash[:]) })
	sum := sha256.New()
	for _, r := range s.served {
		sum.Write(r.Content.Hash[:])
	}
	sum.Sum(s.Key[:0])
	return s
}

// All returns everything served, in a fixed order. It must not be changed.
func (s *Shape) All() []Served { return s.served }

// Find returns the custom resource of that group and plural name.
func (s *Shape) Find(gr schema.GroupResource) (Served, bool) {
	r, ok := s.by[gr]
	return r, ok
}
