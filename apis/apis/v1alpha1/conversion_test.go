package v1alpha1_test

import (
	"math/rand"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/apis/apis/v1alpha2"
)

func TestRoundTrip(t *testing.T) {
	old := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: "apis.kcp.io/v1alpha1", Kind: kind}
	}
	stored := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: "apis.kcp.io/v1alpha2", Kind: kind}
	}
	t.Run("APIExport of v1alpha1", func(t *testing.T) {
		each(t, func(t *testing.T, in *v1alpha1.APIExport, _ *rand.Rand) {
			in.TypeMeta = old("APIExport")
			before := in.DeepCopy()
			between := sent(t, in.ToV1alpha2())
			expect(t, before, in)
			expect(t, stored("APIExport"), between.TypeMeta)
			expect(t, in, v1alpha1.APIExportFromV1alpha2(between))
		})
	})
	t.Run("APIExport of v1alpha2", func(t *testing.T) {
		each(t, func(t *testing.T, in *v1alpha2.APIExport, _ *rand.Rand) {
			in.TypeMeta = stored("APIExport")
			before := in.DeepCopy()
			between := sent(t, v1alpha1.APIExportFromV1alpha2(in))
			expect(t, before, in)
			expect(t, old("APIExport"), between.TypeMeta)
			expect(t, in, between.ToV1alpha2())
			if err := between.Convertible(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("APIBinding of v1alpha1", func(t *testing.T) {
		each(t, func(t *testing.T, in *v1alpha1.APIBinding, _ *rand.Rand) {
			in.TypeMeta = old("APIBinding")
			before := in.DeepCopy()
			between := sent(t, in.ToV1alpha2())
			expect(t, before, in)
			expect(t, stored("APIBinding"), between.TypeMeta)
			expect(t, in, v1alpha1.APIBindingFromV1alpha2(between))
		})
	})
	t.Run("APIBinding of v1alpha2", func(t *testing.T) {
		each(t, func(t *testing.T, in *v1alpha2.APIBinding, _ *rand.Rand) {
			in.TypeMeta = stored("APIBinding")
			before := in.DeepCopy()
			between := sent(t, v1alpha1.APIBindingFromV1alpha2(in))
			expect(t, before, in)
			expect(t, old("APIBinding"), between.TypeMeta)
			expect(t, in, between.ToV1alpha2())
			if err := between.Convertible(); err != nil {
				t.Error(err)
			}
		})
	})
}

// A client of v1alpha1 reads an object of v1alpha2, changes the lists in its spec, and writes
// it back.

func TestOldClientChangesExport(t *testing.T) {
	each(t, func(t *testing.T, before *v1alpha2.APIExport, r *rand.Rand) {
		old := sent(t, v1alpha1.APIExportFromV1alpha2(before))
		old.Spec.LatestResourceSchemas = changed(r, old.Spec.LatestResourceSchemas, resourceOf, schemaName)
		old.Spec.PermissionClaims = changed(r, old.Spec.PermissionClaims, oldExportKey, filled[v1alpha1.PermissionClaim])
		after := sent(t, old.ToV1alpha2())

		again := v1alpha1.APIExportFromV1alpha2(after)
		expect(t, old.Spec, again.Spec)
		expect(t, before.Status, after.Status)
		expect(t, before.Spec.Identity, after.Spec.Identity)
		schemas, claims := keys(old.Spec.LatestResourceSchemas, resourceOf), keys(old.Spec.PermissionClaims, oldExportKey)
		kept(t, before.Spec.Resources, after.Spec.Resources, schemas, resourceKey, resourceHidden, resourceDetails)
		kept(t, before.Spec.PermissionClaims, after.Spec.PermissionClaims, claims, exportKey, claimHidden, claimDetails)

		twice := slices.ContainsFunc(before.Spec.Resources, func(r v1alpha2.ResourceSchema) bool {
			return resourceHidden(r) && slices.Contains(schemas, resourceKey(r))
		})
		if err := old.Convertible(); twice != (err != nil) {
			t.Errorf("a resource is exported twice: %v; got error %v", twice, err)
		}
	})
}

func TestOldClientChangesBinding(t *testing.T) {
	each(t, func(t *testing.T, before *v1alpha2.APIBinding, r *rand.Rand) {
		old := sent(t, v1alpha1.APIBindingFromV1alpha2(before))
		old.Spec.PermissionClaims = changed(r, old.Spec.PermissionClaims, oldAnswerKey, filled[v1alpha1.AcceptablePermissionClaim])
		after := sent(t, old.ToV1alpha2())

		expect(t, old.Spec, v1alpha1.APIBindingFromV1alpha2(after).Spec)
		expect(t, before.Status, after.Status)
		expect(t, before.Spec.Reference, after.Spec.Reference)
		kept(t, before.Spec.PermissionClaims, after.Spec.PermissionClaims, keys(old.Spec.PermissionClaims, oldAnswerKey), answerKey, answerHidden, answerDetails)
		if err := old.Convertible(); err != nil {
			t.Error(err)
		}
	})
}

// A controller that uses v1alpha1 writes the status.
func TestOldClientChangesBindingStatus(t *testing.T) {
	each(t, func(t *testing.T, before *v1alpha2.APIBinding, r *rand.Rand) {
		old := sent(t, v1alpha1.APIBindingFromV1alpha2(before))
		old.Status.ExportPermissionClaims = changed(r, old.Status.ExportPermissionClaims, oldExportKey, filled[v1alpha1.PermissionClaim])
		old.Status.AppliedPermissionClaims = changed(r, old.Status.AppliedPermissionClaims, oldClaimKey, filled[v1alpha1.PermissionClaim])
		after := sent(t, old.ToV1alpha2())

		expect(t, old.Status, v1alpha1.APIBindingFromV1alpha2(after).Status)
		expect(t, before.Spec, after.Spec)
		kept(t, before.Status.ExportPermissionClaims, after.Status.ExportPermissionClaims, keys(old.Status.ExportPermissionClaims, oldExportKey), exportKey, claimHidden, claimDetails)
		kept(t, before.Status.AppliedPermissionClaims, after.Status.AppliedPermissionClaims, keys(old.Status.AppliedPermissionClaims, oldClaimKey), claimKey, scopedHidden, scopedDetails)
	})
}

// A client of v1alpha2 changes an object of v1alpha1 and leaves most of its claims as they are.
func TestNewClientChangesBinding(t *testing.T) {
	each(t, func(t *testing.T, before *v1alpha1.APIBinding, r *rand.Rand) {
		stored := sent(t, before.ToV1alpha2())
		stored.Spec.PermissionClaims = changed(r, stored.Spec.PermissionClaims, answerKey, filled[v1alpha2.AcceptablePermissionClaim])
		after := sent(t, v1alpha1.APIBindingFromV1alpha2(stored))

		expect(t, stored.Spec, after.ToV1alpha2().Spec)
		expect(t, before.Status, after.Status)
		var want []v1alpha1.AcceptablePermissionClaim
		for _, c := range stored.Spec.PermissionClaims {
			if answerHidden(c) {
				continue
			}
			o := v1alpha1.AcceptablePermissionClaim{PermissionClaim: v1alpha1.PermissionClaim{All: true}}
			for _, b := range before.Spec.PermissionClaims {
				if oldAnswerKey(b) == answerKey(c) {
					o = b
				}
			}
			o.Group, o.Resource, o.IdentityHash, o.State = c.Group, c.Resource, c.IdentityHash, c.State
			want = append(want, o)
		}
		expect(t, want, after.Spec.PermissionClaims)
	})
}

// changed returns entries after a few changes: some are gone, new, replaced by others of the
// same key, or in another place. No two have one key.
func changed[T any](r *rand.Rand, entries []T, key func(T) string, fresh func(*rand.Rand) T) []T {
	for range r.Intn(4) {
		next := fresh(r)
		switch at := r.Intn(len(entries) + 1); {
		case at == len(entries) || r.Intn(3) == 0:
			entries = slices.Insert(entries, at, next)
		case r.Intn(3) == 0:
			entries = slices.Delete(entries, at, at+1)
		case r.Intn(2) == 0:
			entries[0], entries[at] = entries[at], entries[0]
		default:
			for key(next) != key(entries[at]) {
				next = fresh(r)
			}
			entries[at] = next
		}
	}
	return unique(entries, key)
}

// kept expects in after the shown entries with the given keys and the hidden entries that
// were there before and have other keys. Details must be those from before, or plain.
func kept[T any](t *testing.T, before, after []T, shown []string, key func(T) string, hidden func(T) bool, details func(T) string) {
	t.Helper()
	visible := func(e T) bool { return !hidden(e) }
	want := slices.DeleteFunc(slices.Clone(before), func(e T) bool { return !hidden(e) || slices.Contains(shown, key(e)) })
	expect(t, want, slices.DeleteFunc(slices.Clone(after), visible))
	rest := slices.DeleteFunc(slices.Clone(after), hidden)
	expect(t, shown, keys(rest, key))
	for _, e := range rest {
		want := ""
		for _, b := range before {
			if visible(b) && key(b) == key(e) {
				want = details(b)
			}
		}
		expect(t, want, details(e))
	}
}

func keys[T any](entries []T, key func(T) string) (out []string) {
	for _, e := range entries {
		out = append(out, key(e))
	}
	return out
}

func filled[T any](r *rand.Rand) (out T) {
	random(r.Int63()).Fill(&out)
	return out
}

func TestOrder(t *testing.T) {
	in := &v1alpha2.APIExport{}
	for _, resource := range []string{"a", "b", "c", "d"} {
		verb := "*"
		if resource == "a" || resource == "c" {
			verb = "get"
		}
		in.Spec.PermissionClaims = append(in.Spec.PermissionClaims, v1alpha2.PermissionClaim{Resource: resource, Verbs: []string{verb}})
	}
	old := v1alpha1.APIExportFromV1alpha2(in)
	expect(t, []string{"b.", "d."}, keys(old.Spec.PermissionClaims, oldExportKey))
	expect(t, `[{"group":"","resource":"a","verbs":["get"],"identityHash":""},null,{"group":"","resource":"c","verbs":["get"],"identityHash":""}]`,
		old.Annotations[v1alpha2.PermissionClaimsAnnotation])
	slices.Reverse(old.Spec.PermissionClaims)
	expect(t, []string{"a.", "d.", "c.", "b."}, keys(old.ToV1alpha2().Spec.PermissionClaims, exportKey))
}

// Annotations that no conversion wrote are not taken for entries of the other version.
func TestForeignAnnotations(t *testing.T) {
	const secrets = `{"resource": "secrets", "verbs": ["get"]}`
	stored := &v1alpha2.APIExport{}
	stored.Annotations = map[string]string{v1alpha2.PermissionClaimsAnnotation: "[" + secrets + "]", "a": "b"}
	expect(t, map[string]string{"a": "b"}, v1alpha1.APIExportFromV1alpha2(stored).Annotations)

	old := &v1alpha1.APIExport{}
	old.Annotations = map[string]string{v1alpha2.V1alpha1PermissionClaimsAnnotation: `[{"resource": "secrets", "resourceSelector": [{"name": "a"}]}]`, "a": "b"}
	expect(t, map[string]string{"a": "b"}, old.ToV1alpha2().Annotations)

	old.Annotations = map[string]string{v1alpha2.PermissionClaimsAnnotation: "[" + secrets + "," + secrets + "]"}
	expect(t, []string{"secrets."}, keys(old.ToV1alpha2().Spec.PermissionClaims, exportKey))
}

func TestResultSharesNothing(t *testing.T) {
	in := &v1alpha1.APIExport{}
	in.Spec.Identity = &v1alpha2.Identity{SecretRef: &corev1.SecretReference{Name: "a"}}
	in.Spec.PermissionClaims = []v1alpha1.PermissionClaim{{Resource: "secrets", All: true}, {Resource: "configmaps", All: true}}
	out := in.ToV1alpha2()
	out.Spec.Identity.SecretRef.Name = "b"
	out.Spec.PermissionClaims[0].Verbs[0] = "get"
	expect(t, "a", in.Spec.Identity.SecretRef.Name)
	expect(t, []string{"*"}, out.Spec.PermissionClaims[1].Verbs)
}

func TestConvertible(t *testing.T) {
	const (
		schemas  = v1alpha2.ResourceSchemasAnnotation
		claims   = v1alpha2.PermissionClaimsAnnotation
		answers  = v1alpha2.AcceptablePermissionClaimsAnnotation
		selected = v1alpha2.V1alpha1PermissionClaimsAnnotation
	)
	secrets := []v1alpha1.PermissionClaim{{Resource: "secrets", All: true}}
	for _, c := range []struct {
		name, annotation, text string
		spec                   v1alpha1.APIExportSpec
		want                   string // part of the error
	}{
		{"nothing", "other", "{", v1alpha1.APIExportSpec{LatestResourceSchemas: []string{"v1.widgets.example.org", "v1.secrets.core"}}, ""},
		{"hidden", schemas, `[null, {"name": "widgets", "group": "example.org", "schema": "v2.widgets.example.org", "storage": {"virtual": {}}}]`,
			v1alpha1.APIExportSpec{LatestResourceSchemas: []string{"v1.gadgets.example.org"}}, ""},
		{"malformed schemas", schemas, `[`, v1alpha1.APIExportSpec{}, schemas + " must be a JSON array"},
		{"schemas of another type", schemas, `{}`, v1alpha1.APIExportSpec{}, schemas + " must be a JSON array"},
		{"one schema in both", schemas, `[{"name": "widgets", "group": "example.org", "schema": "v1.widgets.example.org", "storage": {"crd": {}}}]`,
			v1alpha1.APIExportSpec{LatestResourceSchemas: []string{"v1.widgets.example.org"}}, "widgets.example.org has the schemas"},
		{"one resource in both", schemas, `[{"name": "widgets", "group": "example.org", "schema": "v2.widgets.example.org", "storage": {"virtual": {}}}]`,
			v1alpha1.APIExportSpec{LatestResourceSchemas: []string{"v1.widgets.example.org"}}, `the schemas "v1.widgets.example.org" and "v2.widgets.example.org"`},
		{"one resource twice", "other", "", v1alpha1.APIExportSpec{LatestResourceSchemas: []string{"v1.secrets.core", "v2.secrets.core"}}, "secrets has the schemas"},
		{"a malformed name", "other", "", v1alpha1.APIExportSpec{LatestResourceSchemas: []string{"widgets"}}, `the name "widgets"`},
		{"malformed claims", claims, `no`, v1alpha1.APIExportSpec{}, claims + " must be a JSON array"},
		{"malformed selectors", selected, `no`, v1alpha1.APIExportSpec{}, selected + " must be a JSON array"},
		{"a hidden claim", claims, `[{"resource": "secrets", "verbs": ["get"]}]`, v1alpha1.APIExportSpec{}, ""},
		{"details of a claim", claims, `[{"resource": "secrets", "verbs": ["get", "*"]}]`, v1alpha1.APIExportSpec{PermissionClaims: secrets}, ""},
		{"a claim in both", claims, `[{"resource": "secrets", "verbs": ["*"]}]`, v1alpha1.APIExportSpec{PermissionClaims: secrets}, ""},
		{"a claim that is not in the spec", claims, `[{"resource": "secrets", "verbs": ["*"]}]`, v1alpha1.APIExportSpec{}, claims + " has secrets, and spec.permissionClaims has not"},
		{"details of a claim that is not in the spec", claims, `[{"resource": "secrets", "verbs": ["get", "*"]}]`, v1alpha1.APIExportSpec{}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &v1alpha1.APIExport{Spec: c.spec}
			o.Annotations = map[string]string{c.annotation: c.text}
			expectError(t, o.Convertible(), c.want)
			o.ToV1alpha2() // does not panic
		})
	}
	for _, c := range []struct {
		name, annotation, text string
		claims                 []v1alpha1.PermissionClaim
		want                   string
	}{
		{"nothing", "other", "{", secrets, ""},
		{"malformed", answers, "{", secrets, answers + " must be a JSON array"},
		{"malformed selectors", selected, "{", secrets, selected + " must be a JSON array"},
		{"malformed claims of the export", v1alpha2.StatusExportPermissionClaimsAnnotation, "{", nil, v1alpha2.StatusExportPermissionClaimsAnnotation + " must be a JSON array"},
		{"malformed claims in effect", v1alpha2.StatusAppliedPermissionClaimsAnnotation, "{", nil, v1alpha2.StatusAppliedPermissionClaimsAnnotation + " must be a JSON array"},
		{"hidden", answers, `[{"resource": "secrets", "verbs": ["*"], "selector": {"matchLabels": {"a": "b"}}}]`, nil, ""},
		{"not in the spec", answers, `[{"resource": "secrets", "verbs": ["*"], "selector": {"matchAll": true}}]`, nil, answers + " has secrets, and spec.permissionClaims has not"},
		{"one claim twice", "other", "", append(secrets, secrets...), "spec.permissionClaims has secrets twice"},
		{"two identities", "other", "", append([]v1alpha1.PermissionClaim{{Resource: "secrets", IdentityHash: "a", All: true}}, secrets...), ""},
	} {
		t.Run("binding "+c.name, func(t *testing.T) {
			o := &v1alpha1.APIBinding{}
			o.Annotations = map[string]string{c.annotation: c.text}
			for _, claim := range c.claims {
				o.Spec.PermissionClaims = append(o.Spec.PermissionClaims, v1alpha1.AcceptablePermissionClaim{PermissionClaim: claim})
			}
			expectError(t, o.Convertible(), c.want)
			o.ToV1alpha2()
		})
	}
}

// expectError expects an error with the given part, or none if there is none.
func expectError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("got error %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got error %v, want one with %q", err, want)
	}
}
