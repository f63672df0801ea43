package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/apis/apis/v1alpha2"
)

// random returns a source of objects whose lists have no key twice. Names come from small
// sets, so that entries of different lists often concern the same resource.
func random(seed int64) *randfill.Filler {
	funcs := fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, func(serializer.CodecFactory) []any {
		return []any{
			func(s *v1alpha1.APIExportSpec, c randfill.Continue) {
				c.FillNoCustom(s)
				for i := range s.LatestResourceSchemas {
					s.LatestResourceSchemas[i] = schemaName(c)
				}
				s.LatestResourceSchemas = unique(s.LatestResourceSchemas, resourceOf)
				s.PermissionClaims = unique(s.PermissionClaims, oldExportKey)
			},
			func(s *v1alpha1.APIBindingSpec, c randfill.Continue) {
				c.FillNoCustom(s)
				s.PermissionClaims = unique(s.PermissionClaims, oldAnswerKey)
			},
			func(s *v1alpha1.APIBindingStatus, c randfill.Continue) {
				c.FillNoCustom(s)
				s.ExportPermissionClaims = unique(s.ExportPermissionClaims, oldExportKey)
				s.AppliedPermissionClaims = unique(s.AppliedPermissionClaims, oldClaimKey)
			},
			func(p *v1alpha1.PermissionClaim, c randfill.Continue) {
				p.Group, p.Resource, p.IdentityHash = pick(c, "", "example.org"), pick(c, "secrets", "widgets", "gadgets"), pick(c, "", "abc")
				if p.All = c.Bool(); !p.All {
					p.ResourceSelector = []v1alpha1.ResourceSelector{{Name: pick(c, "a", "b")}, {Namespace: "c"}}
				}
			},
			func(s *v1alpha2.APIExportSpec, c randfill.Continue) {
				c.FillNoCustom(s)
				s.Resources = unique(s.Resources, resourceKey)
				s.PermissionClaims = unique(s.PermissionClaims, exportKey)
			},
			func(s *v1alpha2.APIBindingSpec, c randfill.Continue) {
				c.FillNoCustom(s)
				s.PermissionClaims = unique(s.PermissionClaims, answerKey)
			},
			func(s *v1alpha2.APIBindingStatus, c randfill.Continue) {
				c.FillNoCustom(s)
				s.ExportPermissionClaims = unique(s.ExportPermissionClaims, exportKey)
				s.AppliedPermissionClaims = unique(s.AppliedPermissionClaims, claimKey)
			},
			func(r *v1alpha2.ResourceSchema, c randfill.Continue) {
				r.Name, r.Group = pick(c, "widgets", "gadgets", "secrets"), pick(c, "", "example.org")
				r.Schema = pick(c, "v1", "v2") + "." + r.Name + "." + r.Group
				if r.Group == "" {
					r.Schema += "core"
				}
				r.Storage = v1alpha2.ResourceStorage{CRD: &v1alpha2.CRDStorage{}}
				switch c.Intn(6) {
				case 0:
					r.Name = "others" // the schema of another resource
				case 1:
					r.Storage = v1alpha2.ResourceStorage{Virtual: &v1alpha2.VirtualStorage{}}
					c.Fill(r.Storage.Virtual)
				case 2:
					r.Storage.Virtual = &v1alpha2.VirtualStorage{} // no server accepts both or none
				case 3:
					r.Storage.CRD = nil
				}
			},
			func(p *v1alpha2.PermissionClaim, c randfill.Continue) {
				p.Group, p.Resource, p.IdentityHash = pick(c, "", "example.org"), pick(c, "secrets", "widgets", "gadgets"), pick(c, "", "abc")
				p.Verbs = pick(c, []string{"*"}, []string{"*"}, []string{"get", "*"}, []string{"get", "list"})
				if c.Intn(3) == 0 {
					p.DefaultSelector = &v1alpha2.PermissionClaimSelector{}
					c.Fill(p.DefaultSelector)
				}
			},
			func(s *v1alpha2.PermissionClaimSelector, c randfill.Continue) {
				labels := metav1.LabelSelector{MatchLabels: map[string]string{"a": pick(c, "b", "c")}}
				expressions := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpExists}}}
				s.LabelSelector = pick(c, metav1.LabelSelector{}, metav1.LabelSelector{}, metav1.LabelSelector{}, labels, expressions)
				s.MatchAll = c.Intn(3) > 0
			},
			func(s *v1alpha2.ClaimState, c randfill.Continue) {
				*s = pick(c, v1alpha2.ClaimAccepted, v1alpha2.ClaimRejected)
			},
		}
	})
	return fuzzer.FuzzerFor(funcs, rand.NewSource(seed), serializer.NewCodecFactory(runtime.NewScheme())).NumElements(0, 6)
}

// each calls check with many random objects.
func each[T any](t *testing.T, check func(*testing.T, *T, *rand.Rand)) {
	for seed := range int64(100) {
		in := new(T)
		random(seed).Fill(in)
		if check(t, in, rand.New(rand.NewSource(seed))); t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

// sent returns o as it comes back from JSON.
func sent[T any](t *testing.T, o *T) *T {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	out := new(T)
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func expect[T any](t *testing.T, want, got T) {
	t.Helper()
	if !equality.Semantic.DeepEqual(want, got) {
		t.Error(cmp.Diff(want, got, cmpopts.EquateEmpty()))
	}
}

func pick[T any](c interface{ Intn(int) int }, from ...T) T { return from[c.Intn(len(from))] }

func schemaName[C interface{ Intn(int) int }](c C) string {
	return pick(c, "v1", "v2") + "." + pick(c, "widgets", "gadgets", "secrets") + "." + pick(c, "core", "example.org")
}

func unique[T any](in []T, key func(T) string) []T {
	seen := map[string]bool{}
	return slices.DeleteFunc(in, func(e T) bool {
		defer func() { seen[key(e)] = true }()
		return seen[key(e)]
	})
}

// The functions below return the key of an entry, which is the same in both versions.

func resourceKey(r v1alpha2.ResourceSchema) string { return r.Name + "." + r.Group }

func resourceOf(schema string) string {
	return strings.TrimSuffix(strings.TrimLeft(schema, "v12."), "core")
}

func exportKey(c v1alpha2.PermissionClaim) string    { return c.Resource + "." + c.Group }
func oldExportKey(c v1alpha1.PermissionClaim) string { return c.Resource + "." + c.Group }
func claimKey(c v1alpha2.ScopedPermissionClaim) string {
	return exportKey(c.PermissionClaim) + c.IdentityHash
}
func oldClaimKey(c v1alpha1.PermissionClaim) string         { return oldExportKey(c) + c.IdentityHash }
func answerKey(c v1alpha2.AcceptablePermissionClaim) string { return claimKey(c.ScopedPermissionClaim) }
func oldAnswerKey(c v1alpha1.AcceptablePermissionClaim) string {
	return oldClaimKey(c.PermissionClaim)
}

// The entries of v1alpha2 that v1alpha1 hides.

func resourceHidden(r v1alpha2.ResourceSchema) bool {
	return r.Storage.CRD == nil || r.Storage.Virtual != nil || r.Name == "others"
}

func claimHidden(c v1alpha2.PermissionClaim) bool { return !slices.Contains(c.Verbs, "*") }

func scopedHidden(c v1alpha2.ScopedPermissionClaim) bool {
	return claimHidden(c.PermissionClaim) || !c.Selector.MatchAll || len(c.Selector.MatchLabels)+len(c.Selector.MatchExpressions) > 0
}

func answerHidden(c v1alpha2.AcceptablePermissionClaim) bool {
	return scopedHidden(c.ScopedPermissionClaim)
}

// What v1alpha1 cannot express of entries that it shows. Plain entries have nothing.

func resourceDetails(v1alpha2.ResourceSchema) string { return "" }

func claimDetails(c v1alpha2.PermissionClaim) string {
	if c.DefaultSelector == nil && slices.Equal(c.Verbs, []string{"*"}) {
		return ""
	}
	return fmt.Sprint(c.Verbs, c.DefaultSelector)
}

func scopedDetails(c v1alpha2.ScopedPermissionClaim) string { return claimDetails(c.PermissionClaim) }

func answerDetails(c v1alpha2.AcceptablePermissionClaim) string {
	return claimDetails(c.PermissionClaim)
}
