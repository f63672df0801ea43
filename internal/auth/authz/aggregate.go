package authz

import (
	"encoding/binary"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/unforked/kcp/internal/cluster"
)

// Aggregate returns the rules of an aggregated role stored in cluster c. They are the rules
// of the roles that its aggregation rule selects, out of own and the policy. own holds all
// roles stored in c.
func (b *Bootstrap) Aggregate(c cluster.Name, r *rbacv1.ClusterRole, own []*rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	selectors, err := selectorsOf(r)
	if err != nil {
		return nil, err
	}
	parts := b.parts(c, own)
	sources := slices.Clone(parts)
	for _, role := range b.ordered {
		if !slices.ContainsFunc(parts, func(own *rbacv1.ClusterRole) bool { return own.Name == role.Name }) {
			sources = append(sources, b.extend(role, parts))
		}
	}
	slices.SortFunc(sources, byName)
	var rules []rbacv1.PolicyRule
	for _, s := range selectors {
		rules = merge(rules, s, sources, r.Name)
	}
	return rules, nil
}

// parts returns the roles stored in cluster c that aggregation can select, sorted by name.
// A stored role with the name of a policy role has no effect. In system:admin, however, it
// replaces the policy role.
func (b *Bootstrap) parts(c cluster.Name, own []*rbacv1.ClusterRole) []*rbacv1.ClusterRole {
	var parts []*rbacv1.ClusterRole
	for _, r := range own {
		if _, taken := b.roles[r.Name]; len(r.Labels) > 0 && (!taken || c == cluster.Admin) {
			parts = append(parts, r)
		}
	}
	slices.SortFunc(parts, byName)
	return parts
}

// extend returns the policy role r with the rules that parts add to it, or to roles that it
// aggregates. It returns r itself, not a copy, if parts add nothing.
func (b *Bootstrap) extend(r *rbacv1.ClusterRole, parts []*rbacv1.ClusterRole) *rbacv1.ClusterRole {
	if r.AggregationRule == nil || len(parts) == 0 {
		return r
	}
	selectors, err := selectorsOf(r)
	if err != nil {
		return r // an invalid selector adds nothing
	}
	rules := slices.Clip(r.Rules)
	for _, s := range selectors {
		rules = merge(rules, s, parts, r.Name)
		for _, part := range b.ordered {
			if part.Name != r.Name && part.AggregationRule != nil && s.Matches(labels.Set(part.Labels)) {
				rules = merge(rules, labels.Everything(), []*rbacv1.ClusterRole{b.extend(part, parts)}, r.Name)
			}
		}
	}
	if len(rules) == len(r.Rules) {
		return r
	}
	extended := *r
	extended.Rules = rules
	return &extended
}

// fill sets the rules of an aggregated policy role, and first those of the roles that it
// selects. A controller does the same for stored roles.
func (b *Bootstrap) fill(r *rbacv1.ClusterRole) error {
	if r.AggregationRule == nil || len(r.Rules) > 0 {
		return nil
	}
	selectors, err := selectorsOf(r)
	if err != nil {
		return err
	}
	for _, s := range selectors {
		for _, part := range b.ordered {
			if part == r || !s.Matches(labels.Set(part.Labels)) {
				continue
			}
			if err := b.fill(part); err != nil {
				return err
			}
		}
		r.Rules = merge(r.Rules, s, b.ordered, r.Name)
	}
	return nil
}

// merge appends to rules the rules of the roles that s selects, each rule once. It skips
// the aggregated role itself, which is named made.
func merge(rules []rbacv1.PolicyRule, s labels.Selector, roles []*rbacv1.ClusterRole, made string) []rbacv1.PolicyRule {
	var has map[string]bool // a linear search would be quadratic in the number of a tenant's rules
	for _, role := range roles {
		if role.Name == made || !s.Matches(labels.Set(role.Labels)) {
			continue
		}
		if has == nil {
			has = make(map[string]bool, len(rules)+len(role.Rules))
			for i := range rules {
				has[textOf(&rules[i])] = true
			}
		}
		for i := range role.Rules {
			if text := textOf(&role.Rules[i]); !has[text] {
				has[text] = true
				rules = append(rules, role.Rules[i])
			}
		}
	}
	return rules
}

// textOf encodes a rule. Two rules have the same encoding only if they are equal.
func textOf(r *rbacv1.PolicyRule) string {
	var b []byte
	for _, list := range [][]string{r.Verbs, r.APIGroups, r.Resources, r.ResourceNames, r.NonResourceURLs} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, s := range list {
			b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
		}
	}
	return string(b)
}

func selectorsOf(r *rbacv1.ClusterRole) ([]labels.Selector, error) {
	selectors := make([]labels.Selector, len(r.AggregationRule.ClusterRoleSelectors))
	for i := range selectors {
		s, err := metav1.LabelSelectorAsSelector(&r.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, err
		}
		selectors[i] = s
	}
	return selectors, nil
}

func byName(x, y *rbacv1.ClusterRole) int { return strings.Compare(x.Name, y.Name) }
