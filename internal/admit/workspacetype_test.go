package admit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// ada is a user without privileges.
var ada = &user.DefaultInfo{Name: "ada"}

func request(c cluster.Name, resource, name string, old, now map[string]any) Request {
	op := admission.Create
	var before, after runtime.Object
	if old != nil {
		op, before = admission.Update, &unstructured.Unstructured{Object: old}
	}
	if now != nil {
		after = &unstructured.Unstructured{Object: now}
	}
	gv := tenancyapi.GroupVersion
	return Request{admission.NewAttributesRecord(after, before, gv.WithKind("X"), "", name, gv.WithResource(resource), "", op, nil, false, ada), c}
}

func TestTypeRule(t *testing.T) {
	rule := WorkspaceTypes{PathOf: func(c cluster.Name) cluster.Path { return cluster.Path("root:" + c) }, MayBind: func(context.Context, user.Info, cluster.Name, apisv1alpha2.ExportReference) (bool, error) {
		return false, nil
	}}.Rule()
	for name, say := range map[string]struct {
		in        cluster.Name
		typ, why  string
		spec, old map[string]any
	}{
		"anything":        {"c", "a", "", map[string]any{}, nil},
		"root in root":    {"root", "root", "", map[string]any{}, nil},
		"root in another": {"c", "root", "only be in the root workspace", map[string]any{}, nil},
		"a forbidden default binding": {"c", "a", "no permission to bind to export root:c:e",
			map[string]any{"defaultAPIBindings": []any{map[string]any{"export": "e"}}}, map[string]any{}},
		"a name that begins with a digit":      {"c", "1web", "metadata.name: Invalid value: \"1web\": must begin with a letter from a to z", map[string]any{}, nil},
		"an old name that begins with a digit": {"c", "1web", "", map[string]any{}, map[string]any{}},
		"a child without a path":               {"c", "a", "defaultChildWorkspaceType.path must be set", map[string]any{"defaultChildWorkspaceType": map[string]any{"name": "b"}}, nil},
		"an initializer of one letter":         {"c", "a", "at least 2 characters", map[string]any{"initializer": true}, nil},
		"made a terminator":                    {"c", "a", "at least 2 characters", map[string]any{"terminator": true}, map[string]any{}},
		"an initializer":                       {"c", "ab", "", map[string]any{"initializer": true, "terminator": true}, nil},
		"no type at all":                       {"c", "a", "it is no workspace type", map[string]any{"extend": "b"}, nil},
	} {
		now := map[string]any{"spec": say.spec, "metadata": map[string]any{"name": say.typ, "annotations": map[string]any{"kcp.io/path": "root:forged"}}}
		var old map[string]any
		if say.old != nil {
			old = map[string]any{"spec": say.old}
		}
		r := request(say.in, "workspacetypes", say.typ, old, now)
		for range 2 { // it may be asked again
			if err := rule.Mutate(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.Object().GetAnnotations()["kcp.io/path"]; got != "root:"+string(say.in) {
			t.Errorf("%s: the path is %q", name, got)
		}
		err := rule.Validate(t.Context(), r)
		if say.why == "" && err != nil || say.why != "" && !strings.Contains(fmt.Sprint(err), say.why) {
			t.Errorf("%s: %v, not %q", name, err, say.why)
		}
	}
	for name, say := range map[string]struct {
		in      cluster.Name
		asked   string // empty for a collection
		refused bool
	}{
		"by name": {"root", "home", true}, "in a collection": {"root", "", true}, "elsewhere": {"c", "home", false},
	} {
		gv, old := tenancyapi.GroupVersion, &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "home"}}}
		r := Request{admission.NewAttributesRecord(nil, old, gv.WithKind("WorkspaceType"), "", say.asked, gv.WithResource("workspacetypes"), "", admission.Delete, nil, false, ada), say.in}
		if err := rule.Validate(t.Context(), r); (err != nil) != say.refused {
			t.Errorf("the deletion of home %s: %v", name, err)
		}
	}
	// Objects of other resources are ignored.
	r := request("c", "workspaces", "root", nil, map[string]any{"spec": map[string]any{}})
	if err := rule.Mutate(t.Context(), r); err != nil || rule.Validate(t.Context(), r) != nil || len(r.Object().GetAnnotations()) > 0 {
		t.Errorf("a Workspace is taken for a type: %v", err)
	}
}

// A type that has no initializer or terminator gets no permissions for one. It keeps those that it has.
func TestTypePermissions(t *testing.T) {
	rule := WorkspaceTypes{PathOf: func(c cluster.Name) cluster.Path { return cluster.Path(c) }}.Rule()
	for _, role := range []string{"initializer", "terminator"} {
		some := []any{map[string]any{"verbs": []any{"get"}, "apiGroups": []any{""}, "resources": []any{"configmaps"}}}
		spec := func(has bool, permissions []any) map[string]any {
			return map[string]any{"metadata": map[string]any{"name": "web"}, "spec": map[string]any{role: has, role + "Permissions": permissions}}
		}
		for name, c := range map[string]struct {
			old, now map[string]any
			refused  bool
		}{
			"with":                      {nil, spec(true, some), false},
			"without":                   {nil, spec(false, some), true},
			"without, and none":         {nil, spec(false, []any{}), false},
			"added without":             {spec(false, nil), spec(false, some), true},
			"added when it is dropped":  {spec(true, nil), spec(false, some), true},
			"kept when it is dropped":   {spec(true, some), spec(false, some), false},
			"kept, and it never had it": {spec(false, some), spec(false, some), false},
		} {
			err := rule.Validate(t.Context(), request("c", "workspacetypes", "web", c.old, c.now))
			if c.refused != apierrors.IsInvalid(err) || c.refused && !strings.Contains(err.Error(), "spec."+role+"Permissions: Forbidden: the type has no "+role+": set spec."+role+" to true") || !c.refused && err != nil {
				t.Errorf("%s, %s: %v", role, name, err)
			}
		}
		for field, value := range map[string]any{"verbs": []any{}, "apiGroups": nil, "resources": []any{}} {
			broken := map[string]any{"verbs": []any{"get"}, "apiGroups": []any{""}, "resources": []any{"configmaps"}}
			broken[field] = value
			rules := append(slices.Clone(some), broken)
			err := rule.Validate(t.Context(), request("c", "workspacetypes", "web", spec(true, some), spec(true, rules)))
			if want := "spec." + role + "Permissions[1]." + field + ": Required value"; !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("a %s with %s: %v: %v", role, field, value, err)
			}
			if err := rule.Validate(t.Context(), request("c", "workspacetypes", "web", spec(true, rules), spec(true, rules))); err != nil {
				t.Errorf("an old type of a %s with %s: %v: %v", role, field, value, err)
			}
		}
	}
}

func TestKeepType(t *testing.T) {
	full := map[string]any{"name": "a", "path": "root"}
	for name, say := range map[string]struct{ old, now, want any }{
		"left out":         {full, nil, full},
		"empty":            {full, map[string]any{"name": ""}, full},
		"without its path": {full, map[string]any{"name": "a"}, full},
		"another":          {full, map[string]any{"name": "b"}, map[string]any{"name": "b"}},
		"another path":     {full, map[string]any{"name": "a", "path": "b"}, map[string]any{"name": "a", "path": "b"}},
		"none before":      {nil, full, full},
		"never any":        {nil, nil, nil},
		"no type":          {full, "a", "a"},
	} {
		spec := func(typ any) map[string]any {
			if typ == nil {
				return map[string]any{"spec": map[string]any{}}
			}
			return map[string]any{"spec": map[string]any{"type": typ}}
		}
		r := request("c", "workspaces", "w", spec(say.old), spec(say.now))
		u := r.GetObject().(*unstructured.Unstructured)
		keepType(r, u)
		if diff := cmp.Diff(spec(say.want), u.Object); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestInheritGroups(t *testing.T) {
	const key = "authorization.kcp.io/required-groups"
	for name, say := range map[string]struct {
		above, asked, want string
		refused            bool
	}{
		"none": {}, "inherited": {above: "staff", want: "staff"}, "a copy": {above: "staff", asked: "staff", want: "staff"},
		"another": {above: "staff", asked: "all", refused: true}, "out of nothing": {asked: "all", refused: true},
	} {
		w := WorkspaceTypes{Root: func(cluster.Name) tree.Root { return tree.Root{RequiredGroups: say.above} }}
		o := map[string]any{}
		if say.asked != "" {
			o["metadata"] = map[string]any{"annotations": map[string]any{key: say.asked}}
		}
		r := request("c", "workspaces", "w", nil, o)
		err := w.inheritGroups(r, r.GetObject().(*unstructured.Unstructured))
		if (err != nil) != say.refused || err == nil && r.Object().GetAnnotations()[key] != say.want {
			t.Errorf("%s: %v, %v", name, r.Object().GetAnnotations(), err)
		}
	}
}

// A new Workspace inherits from earlier writes of its parent, and is refused until these writes are
// known.
func TestInheritsWhatWasSaidBefore(t *testing.T) {
	mounted := map[string]any{"spec": map[string]any{"mount": map[string]any{}}}
	var known tree.Root
	rule := Workspaces(WorkspaceTypes{
		CatchUp: func(context.Context) error { known.RequiredGroups = "staff"; return nil },
		Root:    func(cluster.Name) tree.Root { return known },
	})
	r := request("c", "workspaces", "w", nil, mounted)
	if err := rule.Mutate(t.Context(), r); err != nil || r.Object().GetAnnotations()[core.RequiredGroupsAnnotation] != "staff" {
		t.Errorf("%v, %v", r.Object().GetAnnotations(), err)
	}
	rule = Workspaces(WorkspaceTypes{CatchUp: func(context.Context) error { return context.DeadlineExceeded }})
	if err := rule.Mutate(t.Context(), request("c", "workspaces", "w", nil, mounted)); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a server that does not know: %v", err)
	}
}

// Only administrators of the server make the workspaces of a type tenants.
func TestOnlyAdministratorsMakeTenants(t *testing.T) {
	rule := WorkspaceTypes{PathOf: func(c cluster.Name) cluster.Path { return cluster.Path(c) }}.Rule()
	typ := func(tenant string) map[string]any {
		return map[string]any{"spec": map[string]any{}, "metadata": map[string]any{"name": "ab", "annotations": map[string]any{tenancyapi.TenantAnnotation: tenant}}}
	}
	admin := &user.DefaultInfo{Name: "boss", Groups: []string{auth.AdminGroup}}
	for name, say := range map[string]struct {
		old, now map[string]any
		who      user.Info
		refused  bool
	}{
		"set by a tenant":         {nil, typ("true"), ada, true},
		"changed by a tenant":     {typ("true"), typ("false"), ada, true},
		"kept by a tenant":        {typ("true"), typ("true"), ada, false},
		"set by an administrator": {nil, typ("true"), admin, false},
	} {
		r := request("root", "workspacetypes", "ab", say.old, say.now)
		a := r.Attributes
		r.Attributes = admission.NewAttributesRecord(a.GetObject(), a.GetOldObject(), a.GetKind(), "", "ab", a.GetResource(), "", a.GetOperation(), nil, false, say.who)
		if err := rule.Validate(t.Context(), r); (err != nil) != say.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
