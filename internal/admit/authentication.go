package admit

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth/issuers"
)

var authentications = schema.GroupResource{Group: tenancy.GroupVersion.Group, Resource: "workspaceauthenticationconfigurations"}

// WorkspaceAuthentications refuses invalid identity providers, with the errors of
// kube-apiserver for its own configuration.
func WorkspaceAuthentications() Rule {
	return Rule{Name: "tenancy.kcp.io/WorkspaceAuthenticationConfiguration", Validate: func(_ context.Context, r Request) error {
		u, ok := r.GetObject().(*unstructured.Unstructured)
		if op := r.GetOperation(); !ok || !r.Is(authentications) || op != admission.Create && op != admission.Update {
			return nil
		}
		all, _, err := unstructured.NestedSlice(u.Object, "spec", "jwt")
		if err != nil {
			return r.Forbid(err)
		}
		if len(all) > issuers.MaxProviders {
			return r.Forbid(fmt.Errorf("spec.jwt has %d identity providers, and the limit is %d; use several configurations", len(all), issuers.MaxProviders))
		}
		for n, one := range all {
			text, err := json.Marshal(one)
			if err != nil {
				return r.Forbid(err)
			}
			if err := issuers.NewProvider(r.Cluster, text).Validate(nil); err != nil {
				return r.Forbid(fmt.Errorf("spec.jwt[%d]: %w", n, err))
			}
		}
		var before []any
		if old, ok := r.GetOldObject().(*unstructured.Unstructured); ok && old != nil {
			before, _, _ = unstructured.NestedSlice(old.Object, "spec", "jwt") // it was valid
		}
		return r.invalid(duplicates(before, all)...)
	}}
}

// duplicates returns the URLs that several identity providers of a configuration have, as kube-apiserver does for its
// own configuration. An update may keep those that the configuration had before.
func duplicates(before, now []any) (errs field.ErrorList) {
	for _, name := range []string{"url", "discoveryURL"} {
		of := func(provider any) string {
			fields, _ := provider.(map[string]any)
			url, _, _ := unstructured.NestedString(fields, "issuer", name)
			return url
		}
		kept, seen := map[string]int{}, map[string]int{}
		for _, provider := range before {
			kept[of(provider)]++
		}
		for i, provider := range now {
			url := of(provider)
			if seen[url]++; url != "" && seen[url] > max(1, kept[url]) {
				errs = append(errs, field.Duplicate(field.NewPath("spec", "jwt").Index(i).Child("issuer", name), url))
			}
		}
	}
	return errs
}
