package consumers

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
)

// Shadowing returns a Placement because of which another one never applies, nil if there is none.
func (c *Cache) Shadowing(p *scheduling.Placement) *scheduling.Placement {
	for _, of := range c.Placements.List(kcp.KeyOf(p).Cluster) {
		if of.DeletionTimestamp == nil && before(of, p) && covers(of, p) {
			return of
		}
	}
	return nil
}

// before reports whether a applies to a namespace that both select.
func before(a, b *scheduling.Placement) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name)) < 0
}

// covers reports whether a selects all namespaces that b selects, whatever their labels are, as far as that can be told.
func covers(a, b *scheduling.Placement) bool {
	if a.Spec.NamespaceSelector == nil || equality.Semantic.DeepEqual(a.Spec.NamespaceSelector, b.Spec.NamespaceSelector) {
		return true
	}
	if b.Spec.NamespaceSelector == nil || byLabels(a) {
		return false
	}
	name, one := b.Spec.NamespaceSelector.MatchLabels[corev1.LabelMetadataName]
	return one && named(name).takes(a)
}
