package auth

import (
	"encoding/binary"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/unforked/kcp/internal/cluster"
)

// Aggregate returns the rules of a role that is stored in cluster c and made of
// others: of those among own, which are all that are stored there, and of those of
// the policy that its aggregation rule selects.
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

// parts returns, of all roles stored in cluster c, those that others can be made
// of, by name. Names of the policy are taken, so that roles of such a name mean nothing,
// except in system:admin, where they take the place of what the policy has.
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

// extend returns a role of the policy in a cluster that has further roles: with
// the rules that these add to it, or to roles that it is made of. It copies a role
// only if something is added.
func (b *Bootstrap) extend(r *rbacv1.ClusterRole, parts []*rbacv1.ClusterRole) *rbacv1.ClusterRole {
	if r.AggregationRule == nil || len(parts) == 0 {
		return r
	}
	selectors, err := selectorsOf(r)
	if err != nil {
		return r // it was stored without being valid, and is as it was
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

// fill does for a role of the policy, and for the roles that it is made of, what a
// controller does for stored roles.
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

// merge adds to rules those of the roles that s selects, each once, but not those
// of the role that is made of them.
func merge(rules []rbacv1.PolicyRule, s labels.Selector, roles []*rbacv1.ClusterRole, made string) []rbacv1.PolicyRule {
	var has map[string]bool // not one by one: a tenant decides how many there are
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

// textOf returns the same for equal rules, and for others something else.
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
